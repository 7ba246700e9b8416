"""What the engines of this machine cost: each measured alone, in its own process, on the work of the apps.

Times are from the sending of a batch to the receiving of its answer, so what crossing processes costs is in
them. An LLM's steps are measured where they run, and what a request takes beyond its steps is added.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from stretto.costs.fit import MeasuredStep, fit_step_cost
from stretto.costs.nnls import nnls
from stretto.costs.shape import Hardware, LLMModel, StepShape
from stretto.costs.step import StepCost, StepFeatures
from stretto.engine import Engine
from stretto.errors import EngineFailure
from stretto.messages import BatchDone, BatchFailed, LLMReport, StartBatch
from stretto.runtime.instances import start_instance
from stretto.runtime.worker import AdmitTask, ForgetQuery, NotReady, RunBatch, Said
from stretto.tasks import Done, Failed, LLMTask, Task, Usage
from stretto.trace.run_file import num_chars

_START_S = 180.0
_ANSWER_S = 60.0
_TYPICAL_CPU = Hardware("a core", 2**34, 2e10, 1e11, 5e10)
"""Its numbers only say in what units the fitted ones are."""


@dataclass(frozen=True, slots=True)
class BatchFit:
    """Seconds of a batch: `base_s`, and for each op so much per item and per character read."""

    base_s: float
    per_item_s: Mapping[str, float]
    per_char_s: Mapping[str, float]

    def __call__(self, batch: StartBatch) -> float:
        return self.seconds(batch.tasks)

    def seconds(self, tasks: Sequence[Task]) -> float:
        """Of a batch of these."""
        seconds = self.base_s
        for task in tasks:
            seconds += self.per_item_s.get(task.op, 0.0) * _num_items(task)
            seconds += self.per_char_s.get(task.op, 0.0) * num_chars([task])
        return seconds


def fit_batches(measured: Sequence[tuple[Sequence[Task], float]]) -> BatchFit:
    """The fit with the least relative errors; nothing in it is negative."""
    ops = sorted({task.op for tasks, _ in measured for task in tasks})
    rows = []
    for tasks, seconds in measured:
        items = [sum(_num_items(task) for task in tasks if task.op == op) for op in ops]
        chars = [num_chars([task for task in tasks if task.op == op]) for op in ops]
        rows.append(np.array([1.0, *items, *chars]) / seconds)
    values = nnls(np.array(rows), np.ones(len(rows))).tolist()
    by_op = values[1 : 1 + len(ops)], values[1 + len(ops) :]
    return BatchFit(values[0], dict(zip(ops, by_op[0], strict=True)), dict(zip(ops, by_op[1], strict=True)))


def _num_items(task: Task) -> int:
    return 1 if task.num_items is None else task.num_items


@dataclass(frozen=True, slots=True)
class RequestStepCost:
    """The steps of an engine, and what a request costs around them: once, and for each token it tells."""

    steps: StepCost
    per_request_s: float
    per_token_s: float

    def step_s(self, shape: StepShape) -> float:
        """Of one step."""
        around_s = self.per_request_s * shape.num_prefills + self.per_token_s * shape.num_decodes
        return self.steps.step_s(shape) + around_s

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Of steps of decodes."""
        return self.steps.steps_s(shape, num_repeats) + num_repeats * self.per_token_s * shape.num_decodes


@dataclass(frozen=True, slots=True)
class Sharing:
    """How much slower each process is when several are busy.

    Attributes:
        of_two: when two are, each on a core.
        cores: beyond so many, they take turns.
    """

    of_two: float
    cores: int

    def __call__(self, num_busy: int) -> float:
        return (self.of_two if num_busy > 1 else 1.0) * max(1.0, num_busy / self.cores)


@dataclass(frozen=True, slots=True)
class MachineCosts:
    """All of it. `errors` has the mean relative error of each fit, and how many measurements it is of."""

    batches: Mapping[str, BatchFit]
    steps: RequestStepCost
    sharing: Sharing
    errors: Mapping[str, tuple[float, int]] = field(default_factory=dict)


class Measurable(Protocol):
    """An instance that is given one batch at a time."""

    def batch_s(self, tasks: Sequence[Task]) -> float:
        """Seconds until a batch is answered."""
        ...

    def forget(self, queries: Iterable[str]) -> None:
        """These have ended."""
        ...


class Alone:
    """An instance in a process of its own."""

    def __init__(self, engine: Engine) -> None:
        self._said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._instance = start_instance(replace(engine, placement="process"), 0, self._said.put)
        self._name = engine.name

    def wait(self) -> None:
        """Until it is ready."""
        said = self._next(_START_S)
        if isinstance(said, NotReady):
            raise said.error

    def batch_s(self, tasks: Sequence[Task]) -> float:
        start_s = time.perf_counter()
        self._instance.send(RunBatch(0, tuple(tasks)))
        said = self._next(_ANSWER_S)
        seconds = time.perf_counter() - start_s
        if isinstance(said, BatchFailed):
            raise said.error
        if not isinstance(said, BatchDone):
            raise EngineFailure(f"{self._name} said {type(said).__name__}")
        return seconds

    def request_s(self, task: LLMTask) -> tuple[float, Usage]:
        """Seconds until a request has ended, and its tokens."""
        start_s = time.perf_counter()
        self.send(task)
        usage = self.next_end()
        return time.perf_counter() - start_s, usage

    def send(self, task: LLMTask) -> None:
        """Begin a request."""
        self._instance.send(AdmitTask(task, 0.0))

    def next_end(self) -> Usage:
        """Wait for the end of a request."""
        while True:
            match self._next(_ANSWER_S):
                case LLMReport(event=Done(usage=usage)):
                    return usage
                case LLMReport(event=Failed(error=error)):
                    raise error
                case LLMReport():
                    pass
                case said:
                    raise EngineFailure(f"{self._name} said {type(said).__name__}")

    def forget(self, queries: Iterable[str]) -> None:
        for query in queries:
            self._instance.send(ForgetQuery(query))

    def _next(self, max_s: float) -> Said:
        try:
            return self._said.get(timeout=max_s)
        except queue.Empty:
            raise EngineFailure(f"{self._name} said nothing for {max_s:.0f} s") from None

    def close(self) -> None:
        """End the process."""
        asyncio.run(self._instance.close())


@contextmanager
def alone(engines: Iterable[Engine]) -> Any:
    """`Alone` instances by name, all ready."""
    instances: dict[str, Alone] = {}
    try:
        for engine in engines:
            instances[engine.name] = Alone(engine)
        for instance in instances.values():
            instance.wait()
        yield instances
    finally:
        for instance in instances.values():
            instance.close()


def measure_batches(
    instance: Measurable, batches: Sequence[Sequence[Task]], *, rounds: int, keeps_state: bool
) -> list[tuple[Sequence[Task], float]]:
    """Median seconds of each batch. With state, each batch is run once in every round, in the given order, as
    what one adds is what a later one finds."""
    queries = {task.query for tasks in batches for task in tasks}
    instance.batch_s(batches[0])
    instance.forget(queries if keeps_state else ())
    seconds: list[list[float]] = [[] for _ in batches]
    for _ in range(rounds):
        for tasks, found in zip(batches, seconds, strict=True):
            found.append(instance.batch_s(tasks))
        instance.forget(queries if keeps_state else ())
    return [(tasks, statistics.median(found)) for tasks, found in zip(batches, seconds, strict=True)]


def choose_evenly(batches: Sequence[Sequence[Task]], count: int) -> list[Sequence[Task]]:
    """So many of them, from the smallest to the largest."""
    ordered = sorted(batches, key=lambda tasks: (sum(map(_num_items, tasks)), num_chars(tasks)))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def measure_steps_apart(measure: Callable[..., list[MeasuredStep]], *arguments: object) -> list[MeasuredStep]:
    """`measure` in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result(timeout=_START_S)


def fit_steps(model: LLMModel, steps: Sequence[MeasuredStep]) -> StepCost:
    """The physical form, fitted."""
    return fit_step_cost(StepFeatures(model, _TYPICAL_CPU), steps)


def fit_requests(
    steps: StepCost, measured: Sequence[tuple[float, Usage]], step_tokens: int
) -> RequestStepCost:
    """What requests, run one by one, take beyond their steps."""
    rows, rest = [], []
    for seconds, usage in measured:
        predicted = request_s(steps, usage, step_tokens)
        rows.append([1.0, max(0, usage.num_output_tokens - 1)])
        rest.append(max(0.0, seconds - predicted))
    weights = 1 / np.array([seconds for seconds, _ in measured])
    values = nnls(np.array(rows) * weights[:, None], np.array(rest) * weights)
    return RequestStepCost(steps, float(values[0]), float(values[1]))


def request_s(steps: StepCost, usage: Usage, step_tokens: int) -> float:
    """Of a request that is alone, by its steps; a step takes so many tokens of its prompt."""
    seconds, start = 0.0, usage.num_cached_tokens
    while start < usage.num_prompt_tokens:
        count = min(step_tokens, usage.num_prompt_tokens - start)
        pairs = count * start + count * (count + 1) // 2
        seconds += steps.step_s(StepShape(1, count, count, pairs))
        start += count
    context = usage.num_prompt_tokens + 1
    decodes = StepShape(num_decodes=1, context_tokens=context, max_context_tokens=context)
    return seconds + steps.steps_s(decodes, max(0, usage.num_output_tokens - 1))


def measure_sharing(
    llm: Alone, tasks: Sequence[LLMTask], other: Measurable, batch: Sequence[Task], cores: int
) -> Sharing:
    """Both at work by themselves, and then together."""

    def all_s(meanwhile: Callable[[], float] | None) -> tuple[float, list[float]]:
        start_s = time.perf_counter()
        for task in tasks:
            llm.send(task)
        others = []
        if meanwhile is not None:
            while time.perf_counter() < start_s + 0.8 * alone_s:
                others.append(meanwhile())
        for _ in tasks:
            llm.next_end()
        seconds = time.perf_counter() - start_s
        llm.forget({task.query for task in tasks})
        return seconds, others

    alone_s = statistics.median(all_s(None)[0] for _ in range(3))
    batch_s = statistics.median(other.batch_s(batch) for _ in range(3))
    together = [all_s(lambda: other.batch_s(batch)) for _ in range(3)]
    of_llm = statistics.median(seconds for seconds, _ in together) / alone_s
    of_other = statistics.median(one for _, others in together for one in others) / batch_s
    return Sharing(max(1.0, (of_llm + of_other) / 2), cores)


def mean_error(pairs: Iterable[tuple[float, float]]) -> tuple[float, int]:
    """Of (predicted, measured): mean relative error, and how many."""
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return (statistics.fmean(errors) if errors else 0.0), len(errors)
