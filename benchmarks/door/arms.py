"""What stands before the servers: nothing, our router, or routers by others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.router.contestants import CLONE, VARIABLE, Contestant, running

DIRECT = "no router"
OURS = "ours"
LIBRARY = "our library"
ENDLESS = f"{DIRECT}, 8 x memory"
_PROGRAMS = '{"program_scheduling_enable_key":"auto"}'


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve a load.

    Attributes:
        router: router before the servers; None where each session keeps to one server.
        memory: KV memory of each server, in those of the device.
        cap: sessions that may be at a server at once; 0 for no limit.
        with_ids: whether requests name their session.
        is_library: whether the sessions run on our library, in the client's process, instead of on a client.
        is_virtual: whether the library's schedulers and the servers run in virtual time instead.
    """

    name: str
    router: Contestant | None = None
    memory: float = 1.0
    cap: int = 0
    with_ids: bool = False
    is_library: bool = False
    is_virtual: bool = False


def arms(caps: Sequence[int]) -> list[Arm]:
    """Return the arms: ours, those of others that are installed, none, and none with endless memory."""
    return [
        Arm(DIRECT),
        *(Arm(f"{DIRECT}, at most {cap} sessions", cap=cap) for cap in caps),
        Arm(OURS, _ours()),
        Arm(f"{OURS}, with ids", _ours(), with_ids=True),
        Arm(LIBRARY, is_library=True),
        Arm(f"{LIBRARY}, in virtual time", is_virtual=True),
        *_others(),
        Arm(ENDLESS, memory=8.0),
    ]


@contextmanager
def before(arm: Arm, urls: Sequence[str]) -> Iterator[list[str]]:
    """Yield the addresses that clients use: the router's, or the servers' own."""
    if arm.router is None:
        yield list(urls)
        return
    with running([arm.router], [int(url.rsplit(":", 1)[1]) for url in urls]) as (router,):
        yield [f"http://127.0.0.1:{router.port}"]


def _ours() -> Contestant:
    def command(urls: Sequence[str], port: int, _: int) -> list[str]:
        workers = [word for url in urls for word in ("--worker", url)]
        return [sys.executable, "-m", "stretto.cli.main", "route", "--port", str(port), *workers]

    return Contestant(OURS, command)


def _others() -> list[Arm]:
    python = Path(os.environ.get(VARIABLE) or CLONE / ".venv-router" / "bin" / "python")
    found = []
    for name, program, settings, with_ids in (
        ("sglang-router 0.3.2", "sglang-router", ("launch", "--policy", "cache_aware"), False),
        ("smg 1.13.0", "smg", ("launch", "--policy", "cache_aware"), False),
        ("vllm-router 0.1.17, cache_aware", "vllm-router", ("--policy", "cache_aware"), False),
        (
            "vllm-router 0.1.17, programs, with ids",
            "vllm-router",
            ("--enable-program-scheduling", "--program-scheduling-config-json", _PROGRAMS),
            True,
        ),
    ):
        path = python.parent / program
        if path.exists():
            found.append(Arm(name, Contestant(name, _peer(str(path), settings)), with_ids=with_ids))
    return found


def _peer(program: str, settings: Sequence[str]) -> Callable[[Sequence[str], int, int], list[str]]:
    def command(urls: Sequence[str], port: int, other: int) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(other)]
        return [program, *settings, *where, "--log-level", "error", "--worker-urls", *urls]

    return command
