"""Checks that no request makes a service fail: Schemathesis, from OpenAPI documents.

    python -m checks.service_fuzz [--what WHAT] [--schemathesis COMMAND] [--seconds S] [--seed N]

    programs   the routes of programs, by the service's own document
    openai     OpenAI's API at the service, with its engines and an app (`openai_document.py`)
    workers    the same with emulated workers, to which requests for their models are passed on

Schemathesis runs in an environment of its own (`make fuzz-env`). It sends requests that fit the document and
requests that do not, alone and along the links from answers to requests. The service has a scripted LLM and
a `max_wait_s` of 0.2. The exit code is 1 if an answer had status 500 or took more than 2 s (of programs also
if it had a status or a form that the document does not name), and if sessions with work or the service do not
end afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from checks.openai_clients_check import running
from checks.openai_document import openai_document
from stretto import Input, Template
from stretto.cli.served_engines import with_vector_engines
from stretto.components import LLMCall
from stretto.engines.catalogue import transforms_engine
from stretto.engines.llms import STAND_IN, llm_engine
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.runtime.runtime import Runtime
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.service import Service

SCHEMATHESIS = Path(".venv-fuzz/bin/schemathesis")
_MAX_S = 2.0
_MODELS = ("llama-2-7b",)
"""Models of the emulated worker."""
_EMULATE = ("emulate", "--model", *_MODELS, "--loading-s", "0", "--port", "0", "--speed", "10")
"""Command of the emulated worker. A request without a limit gets 256 tokens: more than a GPU writes
within `_MAX_S`.
"""
_CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "allow_header_conformance"
)
_SETTINGS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", 502, 503, 504]
"""
"""Settings of Schemathesis: a failed step of a program (502, 504) is no failure of the service."""


def fuzz(command: Path, url: str, document: dict[str, Any] | None, seconds: int, seed: int) -> int:
    """Send requests to the service at a URL for some seconds; return the exit code of Schemathesis.

    `document` says which requests; None stands for the service's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "schemathesis.toml"
        settings.write_text(_SETTINGS)
        described, checks = f"{url}/openapi.json", _CHECKS
        if document is not None:
            described, checks = str(Path(folder) / "document.json"), _CHECKS.partition(",")[0]
            Path(described).write_text(json.dumps(document))
        arguments = [str(command.absolute()), "--config-file", str(settings), "run", described]
        arguments += ["--url", url, "--checks", checks, "--seed", str(seed)]
        arguments += ["--max-response-time", f"{_MAX_S:g}"]
        arguments += ["--phases", "fuzzing,stateful", "--max-time", str(seconds), "--max-examples", "100000"]
        arguments += ["--suppress-health-check", "all", "--warnings", "off"]
        return subprocess.run(arguments, cwd=folder, check=False).returncode


async def check(what: str, command: Path, seconds: int, seed: int) -> int:
    """Run a service, fuzz it, and end it; return the exit code of the check."""
    config = ServiceConfig(port=0, max_wait_s=0.2, grace_s=_MAX_S)
    document = None if what == "programs" else openai_document(("llm", "app:ask", *_MODELS))
    apps = {"ask": deploy_app("ask", _ask())}
    async with AsyncExitStack() as stack:
        pool = None
        llm = llm_engine(STAND_IN)
        if what == "workers":
            worker = WorkerConfig(url=stack.enter_context(running(*_EMULATE)))
            pool = WorkerPool(RouterConfig(worker=(worker,)), config)
            llm = pool.deployment
        engines = with_vector_engines([llm, transforms_engine()])[0]
        observers = () if pool is None else (pool,)
        runtime = await stack.enter_async_context(Runtime(engines, observers=observers))
        if pool is not None:
            await stack.enter_async_context(pool)
        service = await stack.enter_async_context(Service(runtime, config, apps, pool=pool))
        code = await asyncio.to_thread(fuzz, command, service.url, document, seconds, seed)
        async with asyncio.timeout(10 * _MAX_S):
            await service.drain()
        print(f"{len(service.sessions)} sessions were left open, and {service.app.num_open} requests")
        return 1 if code or service.app.num_open else 0


def _ask() -> Template:
    """An app that asks the LLM once."""
    call = LLMCall(prompt="{question}", question=Input("question", "text"))
    return Template("ask", call, {"answer": call["text"]})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return its exit code."""
    parser = argparse.ArgumentParser(prog="checks.service_fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=("programs", "openai", "workers"), default="programs")
    parser.add_argument("--schemathesis", type=Path, default=SCHEMATHESIS, help="command to run")
    parser.add_argument("--seconds", type=int, default=600, help="seconds for which requests are sent")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    given = parser.parse_args(arguments)
    if not given.schemathesis.exists():
        print(f"there is no {given.schemathesis}: run make fuzz-env", file=sys.stderr)
        return 2
    return asyncio.run(check(given.what, given.schemathesis, given.seconds, given.seed))


if __name__ == "__main__":
    sys.exit(main())
