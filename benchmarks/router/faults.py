"""`stretto bench router --faults`: what do faults of workers, and of the router itself, cost its clients?

Four servers, each a process of its own, answer after 20 ms. Clients ask the router at a steady rate, each on
a new connection. After a third of the time something happens to one server, or to the router; after two
thirds it is undone.

    killed    the server's process is killed, and started again at the same port
    refuses   the server answers with status 503
    slow      the server takes a second longer
    drained   the server is drained by the router; another one is added
    restart   the router is interrupted, and another one started at its port

    lost      requests without an answer of status 200. While the router restarts, clients try again if they
              get no connection, or one that is closed without a byte; "retried" counts them
    delayed   requests whose first byte came later than the median by over 100 ms
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from urllib.request import Request, urlopen

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from benchmarks.router.contestants import CLONE, free_port, wait_until_it_answers
from benchmarks.router.load import bodies
from benchmarks.router.steady_load import Asked, ask_steadily

TABLE = "faults of one of four workers, or of the router"
_FIRST_S = 0.02
_LATE_S = 0.1
_NUM_WORKERS = 4


@dataclass(frozen=True, slots=True)
class FaultSize:
    """Sizes of the benchmark: seconds of each load, and requests a second."""

    seconds: float = 9.0
    rate_per_s: float = 100.0
    placements: tuple[str, ...] = ("least_loaded", "stretto")


QUICK_FAULTS = FaultSize(seconds=4.5)


class Worker:
    """A server that runs in a process of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self._start()

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> None:
        command = [sys.executable, "-m", "benchmarks.router.origin", "1", str(self.port), str(_FIRST_S)]
        self._process = subprocess.Popen(command, cwd=CLONE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        """Start a new process at the same port."""
        self.end()
        self._start()

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """End the process."""
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Router:
    """Our router before some workers, in a process of its own."""

    def __init__(self, placement: str, workers: Sequence[Worker]) -> None:
        self.port = free_port()
        urls = [word for worker in workers for word in ("--worker", worker.url)]
        settings = ["--placement", placement, "--port", str(self.port)]
        self._command = [sys.executable, "-m", "stretto.cli.main", "route", *settings, *urls]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(self._command, cwd=CLONE, stderr=subprocess.DEVNULL)
        wait_until_it_answers("our router", self.port)

    def restart(self) -> None:
        """Interrupt it, wait for its end, and start it again."""
        self._process.terminate()
        self._process.wait()
        self.start()

    def end(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def post(self, path: str, body: object = None) -> None:
        """Send a command to it."""
        data = json.dumps(body).encode()
        with urlopen(Request(f"http://127.0.0.1:{self.port}{path}", data, method="POST"), timeout=30):
            pass


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, how it is undone, whether it may delay requests, and whether clients try again."""

    name: str
    happen: Callable[[Router, Worker, Worker], None]
    undo: Callable[[Router, Worker, Worker], None]
    may_delay: bool = False
    retries: bool = False


FAULTS = (
    Fault("killed", lambda _, one, __: one.kill(), lambda _, one, __: one.start_again()),
    Fault(
        "refuses",
        lambda _, one, __: one.signal(signal.SIGUSR1),
        lambda _, one, __: one.signal(signal.SIGUSR1),
    ),
    Fault(
        "slow",
        lambda _, one, __: one.signal(signal.SIGUSR2),
        lambda _, one, __: one.signal(signal.SIGUSR2),
        may_delay=True,
    ),
    Fault(
        "drained",
        lambda router, _, __: router.post("/router/workers/1/drain"),
        lambda router, _, spare: router.post("/router/workers", {"url": spare.url}),
    ),
    Fault(
        "restart",
        lambda router, _, __: router.restart(),
        lambda _, __, ___: None,
        may_delay=True,
        retries=True,
    ),
)


def measure_faults(size: FaultSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    rows, goals = [], []
    for placement in size.placements:
        for fault in FAULTS:
            options.say(f"{placement}: {fault.name}")
            values = run_fault(fault, placement, size, options.seed)
            name = f"{fault.name}, {placement}"
            rows.append(Row(TABLE, name, values))
            goals.append(Goal(f"{name}: requests lost", float(values["lost"] or 0), 0, "lower"))
            if not fault.may_delay:
                late = float(values["delayed"] or 0)
                goals.append(Goal(f"{name}: delayed by over 100 ms", late, 1, "lower"))
    notes = ("times count other work on this machine too",)
    return Report("router", options.seed, asdict(size), tuple(rows), tuple(goals), notes)


def run_fault(fault: Fault, placement: str, size: FaultSize, seed: int) -> dict[str, Value]:
    """Return what a load met that a fault happened in."""
    with _running(placement) as (router, workers, spare):
        third_s = size.seconds / 3
        events = (
            (third_s, lambda: fault.happen(router, workers[1], spare)),
            (2 * third_s, lambda: fault.undo(router, workers[1], spare)),
        )
        prompts = bodies(64, seed, is_streamed=False)
        asked = ask_steadily(
            router.port, prompts, size.rate_per_s, size.seconds, events, retries=fault.retries
        )
    return _values(asked)


@contextmanager
def _running(placement: str) -> Iterator[tuple[Router, list[Worker], Worker]]:
    workers = [Worker() for _ in range(_NUM_WORKERS + 1)]
    router = Router(placement, workers[:-1])
    try:
        yield router, workers[:-1], workers[-1]
    finally:
        router.end()
        for worker in workers:
            worker.end()


def _values(asked: Sequence[Asked]) -> dict[str, Value]:
    first_s = [one.first_s for one in asked if one.first_s is not None]
    median_s = statistics.median(first_s)
    return {
        "requests": len(asked),
        "lost": sum(one.status != 200 for one in asked),
        "delayed": sum(one > median_s + _LATE_S for one in first_s),
        "median_ms": 1000 * median_s,
        "longest_ms": 1000 * max(first_s),
        "retried": sum(one.num_retries > 0 for one in asked),
    }
