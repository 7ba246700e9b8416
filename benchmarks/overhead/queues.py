"""What the end of one LLM request and the admission of the next cost, by how many wait."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.report import Row, spread
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Done, Usage
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import AddInstance, InstanceReady, LLMReport
from stretto.sched.messages import Event, Submit
from stretto.sched.orders import ORDERS
from stretto.sched.system import System

QUEUES = "a request ends and the next is admitted, by requests that wait"
_PROFILE = Profile(base_s=0.02, per_unit_s=0.0001, per_output_s=0.02, per_neighbour_s=0.0002)
_BETWEEN_S = 0.01
_CALLS = 20


def queue_rows(repetitions: int, waiting: Sequence[int]) -> list[Row]:
    """A row for each order and number of waiting requests, each of a query of its own."""
    return [
        Row(
            QUEUES,
            f"{policy}, {num_waiting} waiting",
            spread(_times_us(policy, num_waiting, repetitions), "us"),
        )
        for policy in ORDERS
        for num_waiting in waiting
    ]


def _times_us(policy: str, num_waiting: int, repetitions: int) -> list[float]:
    """Microseconds of an end and an admission, as means of `_CALLS` of them; each is followed by a new query,
    which is not measured."""
    queue = WaitingQueries(policy, num_waiting)
    gc.collect()
    times = []
    for _ in range(repetitions):
        seconds = 0.0
        for _ in range(_CALLS):
            seconds += queue.end_one()
            queue.submit()
        times.append(seconds / _CALLS * 1e6)
    return times


class WaitingQueries:
    """An engine with one instance that is full, and a number of queries of two kinds that wait for it."""

    def __init__(self, policy: str, num_waiting: int) -> None:
        engine = deploy(
            "llm", FakeLLM, FakeLLMConfig(), contract="llm", policy=policy, profile=_PROFILE, age_limit_s=1e9
        )
        self._system = System([engine])
        ready = [AddInstance(engine.name, replica) for replica in engine.replicas]
        self._system.handle(ready, 0.0)
        self._system.handle([InstanceReady(engine.name, i) for i in range(len(ready))], 0.0)
        self._graphs = [_graph(1), _graph(3)]
        self._num_submitted = 0
        self._now_s = 0.0
        self._running: list[int] = []
        for _ in range(num_waiting + engine.engine.max_running):
            self.submit()

    def submit(self) -> None:
        """One more query."""
        self._now_s += _BETWEEN_S
        number = self._num_submitted
        self._num_submitted += 1
        inputs = {"q": f"question {number} " + "x" * (number * 7919 % 400)}
        self._handle(Submit(f"q{number}", self._graphs[number % 2], inputs))

    def end_one(self) -> float:
        """Let the request end that began first; CPU seconds of the schedulers."""
        done = LLMReport("llm", 0, Done(self._running.pop(0), "text", Usage(40, 0, 100)))
        start_s = time.thread_time()
        actions = self._system.handle([done], self._now_s)
        seconds = time.thread_time() - start_s
        self._note(actions)
        return seconds

    def _handle(self, event: Event) -> None:
        self._note(self._system.handle([event], self._now_s))

    def _note(self, actions: list[Action]) -> None:
        self._running += [action.task.id for action in actions if isinstance(action, Admit)]


def _graph(num_calls: int) -> ExecutionGraph:
    """Calls that are all ready at once."""
    names = [f"a{number}" for number in range(num_calls)]
    lines = [
        line
        for name in names
        for line in (
            f'%k{name} = prefill([c"{name} ", %q]) : kv @llm',
            f"%{name} = decode(%k{name}) {{max_tokens=200}} : text @llm",
        )
    ]
    returned = ", ".join(f"%{name}" for name in names)
    return compile_graph(
        parse_graph("\n".join(["graph calls(%q: text)", *lines, f"return {returned}"])), {"llm": _PROFILE}
    )
