"""Does Stretto work with real vLLM servers as they are?

    python -m checks.real_servers [--vllm PYTHON]                two vLLM servers of the default model
    python -m checks.real_servers --url URL [--url URL]          servers that run already

With `--only agents,doors,plans` some of it. Prints a line for each thing that was looked at. Exit code 1 if
one is not as documented. Servers that run already need a parser of tool calls: `--enable-auto-tool-choice
--tool-call-parser hermes --chat-template checks/real_servers/tools.jinja`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.common.vllm_server import NOT_INSTALLED, find_vllm, serving
from checks.real_servers.agents import check_agents
from checks.real_servers.checkpoint import write_checkpoint
from checks.real_servers.doors import check_doors
from checks.real_servers.outcome import Outcome
from checks.real_servers.plans import check_plans
from stretto.engines.models.store import fetched_model

_TEMPLATE = Path(__file__).parent / "tools.jinja"
_OPTIONS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", str(_TEMPLATE))
_CHECKS = ("agents", "doors", "plans")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--url", action="append", default=[])
    parser.add_argument("--only", default=",".join(_CHECKS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, urls = Path(name), list(options.url)
        end: Callable[[], None] | None = None
        if not urls:
            vllm = find_vllm(options.vllm)
            if vllm is None:
                print(NOT_INSTALLED)
                return 2
            print(f"vLLM {vllm.version}")
            checkpoint = write_checkpoint(fetched_model("smollm2").path, folder / "model")
            for _ in range(2):
                started = serving(
                    vllm, checkpoint, dtype="bfloat16", num_threads=1, say=lambda _: None, options=_OPTIONS
                )
                end_last = stack.enter_context(ExitStack())
                urls.append(end_last.enter_context(started))
            end = end_last.close
        is_right = True
        for outcome in _outcomes(options.only.split(","), urls, folder, end):
            print(outcome, flush=True)
            is_right = is_right and outcome.is_right
    return 0 if is_right else 1


def _outcomes(
    only: Sequence[str], urls: Sequence[str], folder: Path, end: Callable[[], None] | None
) -> Iterator[Outcome]:
    model = httpx.get(f"{urls[0]}/v1/models").json()["data"][0]["id"]
    if "agents" in only:
        yield from check_agents(urls[0])
    if "doors" in only:
        yield from check_doors(urls[0], model)
    if "plans" in only:
        yield from check_plans(urls, model, folder, end)


if __name__ == "__main__":
    sys.exit(main())
