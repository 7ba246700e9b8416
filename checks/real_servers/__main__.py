"""Does Stretto work with real vLLM servers as they are?

    python -m checks.real_servers [--vllm PYTHON]                two vLLM servers of the default model
    python -m checks.real_servers --url URL [--url URL]          servers that run already

With `--only agents,programs,doors,plans,split,room` some of it; the last two start servers of their own.
Prints a line for each thing that was looked at. Exit code 1 if one is not as documented. Servers that run
already need a parser of tool calls: `--enable-auto-tool-choice --tool-call-parser hermes --chat-template
checks/real_servers/tools.jinja`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx

from benchmarks.common.mini_model import MINI
from benchmarks.common.vllm_server import MODEL, NOT_INSTALLED, VLLM, find_vllm, serving
from checks.real_servers.agents import check_agents
from checks.real_servers.checkpoint import write_checkpoint
from checks.real_servers.doors import check_doors
from checks.real_servers.outcome import Outcome
from checks.real_servers.plans import check_plans
from checks.real_servers.programs import check_programs
from checks.real_servers.room import OPTIONS, check_room
from checks.real_servers.split import CONNECTOR, SIDE_PORT, check_split
from stretto.engines.models.store import fetched_model
from stretto.engines.server_process.kept import take_port

_TEMPLATE = Path(__file__).parent / "tools.jinja"
_OPTIONS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", str(_TEMPLATE))
_AT_ANY = ("agents", "programs", "doors", "plans")
_CHECKS = (*_AT_ANY, "split", "room")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--url", action="append", default=[])
    parser.add_argument("--only", default=",".join(_CHECKS))
    options = parser.parse_args()
    only = options.only.split(",")
    is_right = True
    with tempfile.TemporaryDirectory() as name:
        if options.url:
            outcomes = _at_any(only, options.url, Path(name), None)
        else:
            vllm = find_vllm(options.vllm)
            if vllm is None:
                print(NOT_INSTALLED)
                return 2
            print(f"vLLM {vllm.version}")
            outcomes = _at_own(only, vllm, Path(name))
        for outcome in outcomes:
            print(outcome, flush=True)
            is_right = is_right and outcome.is_right
    return 0 if is_right else 1


def _at_any(
    only: Sequence[str], urls: Sequence[str], folder: Path, end: Callable[[], None] | None
) -> Iterator[Outcome]:
    model = httpx.get(f"{urls[0]}/v1/models").json()["data"][0]["id"]
    if "agents" in only:
        yield from check_agents(urls[0])
    if "programs" in only:
        yield from check_programs(urls[0])
    if "doors" in only:
        yield from check_doors(urls[0], model)
    if "plans" in only:
        yield from check_plans(urls, model, folder, end)


def _at_own(only: Sequence[str], vllm: VLLM, folder: Path) -> Iterator[Outcome]:
    """Start servers of the default model and, for `room`, of a tiny one; at most two at once."""
    checkpoint = folder / "model"
    if set(only) - {"room"}:
        write_checkpoint(fetched_model("smollm2").path, checkpoint)
    start = partial(serving, vllm, num_threads=1, say=lambda _: None)
    if set(only) & set(_AT_ANY):
        with ExitStack() as first, ExitStack() as last:
            urls = [
                stack.enter_context(start(checkpoint, dtype="bfloat16", options=_OPTIONS))
                for stack in (first, last)
            ]
            yield from _at_any(only, urls, folder, last.close)
    if "split" in only:
        with ExitStack() as first, ExitStack() as last:
            prefill, decode = (
                stack.enter_context(
                    start(
                        checkpoint,
                        dtype="float32",
                        options=CONNECTOR,
                        variables={SIDE_PORT: str(take_port(None))},
                        grace_s=0,
                    )
                )
                for stack in (first, last)
            )
            yield from check_split(prefill, decode, MODEL, first.close)
    if "room" in only:
        with start(MINI, dtype="bfloat16", options=OPTIONS) as url:
            yield from check_room(url, MODEL)


if __name__ == "__main__":
    sys.exit(main())
