"""Measures engines one at a time, each in a separate process, on given batches and requests.

Times are from the sending of a batch to the arrival of its answer, so they include the cost of crossing
processes.
"""

from __future__ import annotations

import math
import queue
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from benchmarks.twin.costs import Sharing, num_items
from stretto.cluster.messages import KVReport
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineFailure
from stretto.model.tasks import Done, Failed, LLMTask, Task, Usage
from stretto.runtime.instances import Instance, start_instance
from stretto.runtime.loop_thread import LoopThread, run_on
from stretto.runtime.worker import AdmitTask, Command, ForgetQuery, RunBatch
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceLost, LLMReport
from stretto.sched.messages import Event
from stretto.trace.recorded_sizes import num_chars

_START_S = 180.0
_ANSWER_S = 60.0


class Measurable(Protocol):
    """An instance that runs one batch at a time."""

    def batch_s(self, tasks: Sequence[Task]) -> float:
        """Run a batch; returns the seconds until its answer."""
        ...

    def forget(self, queries: Iterable[str]) -> None:
        """Release queries that have ended."""
        ...


class Alone:
    """An instance in a separate process, served by an event loop on a thread of its own."""

    def __init__(self, deployment: Deployment) -> None:
        self._said: queue.SimpleQueue[Event] = queue.SimpleQueue()
        replica = deployment.changed(runs_in="process").replicas[0]
        self._thread = LoopThread()

        async def start() -> Instance:
            return start_instance(deployment.engine, 0, replica, self._said.put)

        self._instance = run_on(self._thread.loop, start)
        self._name = deployment.name

    def wait(self) -> None:
        """Wait until the instance is ready."""
        self._next(_START_S)

    def batch_s(self, tasks: Sequence[Task]) -> float:
        start_s = time.perf_counter()
        self._command(RunBatch(0, tuple(tasks)))
        message = self._next(_ANSWER_S)
        seconds = time.perf_counter() - start_s
        if isinstance(message, BatchFailed):
            raise message.error
        if not isinstance(message, BatchDone):
            raise EngineFailure(f"{self._name} sent an unexpected {type(message).__name__}")
        return seconds

    def request_s(self, task: LLMTask) -> tuple[float, Usage]:
        """Run a request; returns its seconds and its token counts."""
        start_s = time.perf_counter()
        self.send(task)
        usage = self.next_end()
        return time.perf_counter() - start_s, usage

    def send(self, task: LLMTask) -> None:
        """Send a request."""
        self._command(AdmitTask(task, ()))

    def next_end(self) -> Usage:
        """Wait for the end of a request."""
        while True:
            match self._next(_ANSWER_S):
                case LLMReport(event=Done(usage=usage)):
                    return usage
                case LLMReport(event=Failed(error=error)):
                    raise error
                case LLMReport() | KVReport():
                    pass
                case message:
                    raise EngineFailure(f"{self._name} sent an unexpected {type(message).__name__}")

    def forget(self, queries: Iterable[str]) -> None:
        for query in queries:
            self._command(ForgetQuery(query))

    def _command(self, command: Command) -> None:
        self._thread.loop.call_soon_threadsafe(self._instance.send, command)

    def _next(self, max_s: float) -> Event:
        try:
            said = self._said.get(timeout=max_s)
        except queue.Empty:
            raise EngineFailure(f"{self._name} said nothing for {max_s:.0f} s") from None
        if isinstance(said, InstanceLost):
            raise said.error
        return said

    def close(self) -> None:
        """End the process."""
        run_on(self._thread.loop, self._instance.close)
        self._thread.close()


@contextmanager
def alone(deployments: Iterable[Deployment]) -> Iterator[dict[str, Alone]]:
    """`Alone` instances by name, all ready."""
    instances: dict[str, Alone] = {}
    try:
        for deployment in deployments:
            instances[deployment.name] = Alone(deployment)
        for instance in instances.values():
            instance.wait()
        yield instances
    finally:
        for instance in instances.values():
            instance.close()


def measure_batches(
    instance: Measurable,
    batches: Sequence[Sequence[Task]],
    *,
    rounds: int,
    keeps_state: bool,
    max_s: float = math.inf,
) -> list[tuple[Sequence[Task], float]]:
    """Measure the median seconds of each batch.

    If the engine keeps state, each batch is run once in every round, in the given order, because later
    batches find what earlier ones added. No round except the first begins after `max_s`.
    """
    queries = {task.query for tasks in batches for task in tasks}
    instance.batch_s(batches[0])
    instance.forget(queries if keeps_state else ())
    seconds: list[list[float]] = [[] for _ in batches]
    due_s = time.perf_counter() + max_s
    for number in range(rounds):
        if number and time.perf_counter() >= due_s:
            break
        for tasks, found in zip(batches, seconds, strict=True):
            found.append(instance.batch_s(tasks))
        instance.forget(queries if keeps_state else ())
    return [(tasks, statistics.median(found)) for tasks, found in zip(batches, seconds, strict=True)]


def choose_evenly(batches: Sequence[Sequence[Task]], count: int) -> list[Sequence[Task]]:
    """Choose `count` batches, from the smallest to the largest."""
    ordered = sorted(batches, key=lambda tasks: (sum(map(num_items, tasks)), num_chars(tasks)))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / max(1, count - 1))] for i in range(count)]


def measure_sharing(
    llm: Alone,
    second_llm: Alone,
    tasks: Sequence[LLMTask],
    other: Measurable,
    batch: Sequence[Task],
    cores: int,
) -> Sharing:
    """Measure how much slower engines are together than alone.

    Batches run in a row beside most of the requests, and then the same requests run at both LLMs.
    """

    def all_s(beside_s: float) -> tuple[float, float, list[float]]:
        """Seconds of the requests, seconds of them beside batches, and seconds of each batch."""
        start_s = time.perf_counter()
        for task in tasks:
            llm.send(task)
        batches = []
        while time.perf_counter() < start_s + beside_s:
            batches.append(other.batch_s(batch))
        shared_s = time.perf_counter() - start_s
        for _ in tasks:
            llm.next_end()
        seconds = time.perf_counter() - start_s
        llm.forget({task.query for task in tasks})
        return seconds, shared_s, batches

    alone_s = statistics.median(all_s(0.0)[0] for _ in range(3))
    batch_s = statistics.median(other.batch_s(batch) for _ in range(3))
    together = [all_s(0.8 * alone_s) for _ in range(3)]
    of_llm = statistics.median(
        slowdown(alone_s, seconds, min(shared_s, seconds)) for seconds, shared_s, _ in together
    )
    of_llms = statistics.median(_both_s(llm, second_llm, tasks) for _ in range(3)) / alone_s
    of_other = statistics.median(one for _, _, batches in together for one in batches) / batch_s
    return Sharing(of_llm, max(1.0, of_llms), max(1.0, of_other), cores)


def _both_s(llm: Alone, second_llm: Alone, tasks: Sequence[LLMTask]) -> float:
    """Mean seconds that two LLMs take for the same requests at the same time."""
    ends_s = []
    start_s = time.perf_counter()
    for task in tasks:
        llm.send(task)
        second_llm.send(task)
    for one in (llm, second_llm):
        for _ in tasks:
            one.next_end()
        ends_s.append(time.perf_counter() - start_s)
        one.forget({task.query for task in tasks})
    return statistics.mean(ends_s)


def slowdown(alone_s: float, seconds: float, shared_s: float) -> float:
    """Factor by which work of `alone_s` is slower in those `shared_s` of its `seconds` in which it was not
    alone; at least 1."""
    return max(1.0, shared_s / max(1e-9, alone_s - (seconds - shared_s)))
