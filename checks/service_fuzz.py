"""Checks that no request makes a service fail: Schemathesis, from the service's own OpenAPI document.

    python -m checks.service_fuzz [--schemathesis COMMAND] [--seconds S] [--seed N]

Schemathesis runs in an environment of its own (`make fuzz-env`). It sends requests that fit the document and
requests that do not, alone and along the links from answers to requests. The service has a scripted LLM and
a `max_wait_s` of 0.2. The exit code is 1 if an answer had status 500, took more than 2 s, or had a status or
a form that the document does not name, and if sessions with work or the service do not end afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stretto.engines.catalogue import STAND_IN, llm_engine, transforms_engine
from stretto.runtime.runtime import Runtime
from stretto.service.config import ServiceConfig
from stretto.service.service import Service

SCHEMATHESIS = Path(".venv-fuzz/bin/schemathesis")
_MAX_S = 2.0
_CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "allow_header_conformance"
)
_SETTINGS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", 502, 503, 504]
"""
"""Settings of Schemathesis: a failed step of a program (502, 504) is no failure of the service."""


def fuzz(command: Path, url: str, seconds: int, seed: int) -> int:
    """Send requests to the service at a URL for some seconds; return the exit code of Schemathesis."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "schemathesis.toml"
        settings.write_text(_SETTINGS)
        arguments = [str(command.absolute()), "--config-file", str(settings), "run", f"{url}/openapi.json"]
        arguments += ["--checks", _CHECKS, "--max-response-time", f"{_MAX_S:g}", "--seed", str(seed)]
        arguments += ["--phases", "fuzzing,stateful", "--max-time", str(seconds), "--max-examples", "100000"]
        arguments += ["--suppress-health-check", "all", "--warnings", "off"]
        return subprocess.run(arguments, cwd=folder, check=False).returncode


async def check(command: Path, seconds: int, seed: int) -> int:
    """Run a service, fuzz it, and end it; return the exit code of the check."""
    config = ServiceConfig(port=0, max_wait_s=0.2, grace_s=_MAX_S)
    async with (
        Runtime([llm_engine(STAND_IN), transforms_engine()]) as runtime,
        Service(runtime, config) as service,
    ):
        code = await asyncio.to_thread(fuzz, command, service.url, seconds, seed)
        async with asyncio.timeout(10 * _MAX_S):
            await service.drain()
        print(f"{len(service.sessions)} sessions were left open, and {service.app.num_open} requests")
        return 1 if code or service.app.num_open else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return its exit code."""
    parser = argparse.ArgumentParser(prog="checks.service_fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--schemathesis", type=Path, default=SCHEMATHESIS, help="command to run")
    parser.add_argument("--seconds", type=int, default=600, help="seconds for which requests are sent")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    given = parser.parse_args(arguments)
    if not given.schemathesis.exists():
        print(f"there is no {given.schemathesis}: run make fuzz-env", file=sys.stderr)
        return 2
    return asyncio.run(check(given.schemathesis, given.seconds, given.seed))


if __name__ == "__main__":
    sys.exit(main())
