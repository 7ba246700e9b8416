"""The routers that are compared: ours, and two by others if `make router-env` was run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

CLONE = Path(__file__).resolve().parents[2]
VARIABLE = "STRETTO_ROUTER_PYTHON"
PLACEMENTS = ("least_loaded", "stretto")
"""Policies with which our router runs: the cheapest to ask, and the one that asks most."""
OTHERS_MISSING = "others' routers are left out: not installed (`make router-env`)"
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """A router, and the command that starts it, given the URLs of the workers and two free ports."""

    name: str
    command: Callable[[Sequence[str], int, int], list[str]]


@dataclass(frozen=True, slots=True)
class Running:
    """A router that runs."""

    name: str
    port: int
    pid: int

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the threads of its process have spent."""
        if not self.pid:
            return 0.0
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in tasks) / 1e9


def contestants() -> list[Contestant]:
    """Return our router, with some policies, a service whose door passes on, and the routers by others that
    are installed.
    """
    return [*map(ours, PLACEMENTS), Contestant("ours, at the door of a service", _service), *others()]


def ours(placement: str) -> Contestant:
    """Return our router with a placement policy."""
    return Contestant(f"ours, {placement}", _ours(placement))


def others() -> list[Contestant]:
    """Return the routers by others that are installed."""
    found = []
    python = Path(os.environ.get(VARIABLE) or CLONE / ".venv-router" / "bin" / "python")
    if python.exists():
        found.append(Contestant("sglang-router 0.3.2", _peer(str(python.parent / "sglang-router"))))
        found.append(Contestant("smg 1.13.0", _peer(str(python), "-m", "smg")))
    return found


@contextmanager
def origins(num: int, *manner: float) -> Iterator[list[int]]:
    """Run servers that answer at once; yield their ports.

    Args:
        manner: seconds of a whole answer, events of a stream, and seconds between two, where not the usual.
    """
    command = [sys.executable, "-m", "benchmarks.router.origin", str(num), *("0", *map(str, manner))]
    with subprocess.Popen(command, cwd=CLONE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield [int(port) for port in process.stdout.readline().split()]
        finally:
            process.terminate()


@contextmanager
def running(entrants: Sequence[Contestant], ports: Sequence[int]) -> Iterator[list[Running]]:
    """Run routers before the servers at these ports; yield them once all answer."""
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        started = []
        for entrant in entrants:
            port, other = free_port(), free_port()
            process = stack.enter_context(
                subprocess.Popen(
                    entrant.command(urls, port, other),
                    cwd=CLONE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            stack.callback(process.terminate)
            started.append(Running(entrant.name, port, process.pid))
        for router in started:
            wait_until_it_answers(router.name, router.port)
        yield started


def _ours(placement: str) -> Callable[[Sequence[str], int, int], list[str]]:
    def command(urls: Sequence[str], port: int, _: int) -> list[str]:
        workers = [word for url in urls for word in ("--worker", url)]
        settings = ["--placement", placement, "--port", str(port)]
        return [sys.executable, "-m", "stretto.cli.main", "route", *settings, *workers]

    return command


def _service(urls: Sequence[str], port: int, _: int) -> list[str]:
    """Return the command of a service before the workers, placed by the policy `stretto`."""
    workers = [word for url in urls for word in ("--worker", url)]
    return [sys.executable, "-m", "stretto.cli.main", "serve", "--port", str(port), *workers]


def _peer(*program: str) -> Callable[[Sequence[str], int, int], list[str]]:
    def command(urls: Sequence[str], port: int, other: int) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(other)]
        policy = ["--policy", "cache_aware", "--log-level", "error"]
        return [*program, "launch", *where, *policy, "--worker-urls", *urls]

    return command


def free_port() -> int:
    """Return a port of this machine that is free."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port


def wait_until_it_answers(name: str, port: int) -> None:
    """Wait until a router of this machine answers.

    Raises:
        RuntimeError: it does not in a minute.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError as error:
            if time.monotonic() > until_s:
                raise RuntimeError(f"{name} does not answer: {error}") from error
            time.sleep(0.1)
