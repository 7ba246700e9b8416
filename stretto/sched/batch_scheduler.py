"""The lower tier for a batch engine: fuses waiting work of all queries into batches.

An instance runs one batch at a time. Whenever one is idle and something waits, the policy fills a batch:
no slot stays idle while work is ready. Work whose instance was lost is tried again elsewhere; a batch
that failed is run again task by task, so that only the culprit's query fails.

Source: Teola §5.2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from stretto.engine import Engine
from stretto.errors import BadReply, EngineTimeout, StrettoError
from stretto.messages import Action, Release, Restart, StartBatch
from stretto.sched.policies import POLICIES, PolicyConfig, wanted_first
from stretto.sched.results import Report, completed, failed, is_worth_retrying
from stretto.sched.snapshot import EnginePicture
from stretto.sched.work import Work
from stretto.tasks import Task

_UNBOUNDED = 1 << 60


@dataclass(frozen=True, slots=True)
class _Batch:
    id: int
    parts: tuple[tuple[Work, int, int], ...]
    tasks: tuple[Task, ...]
    started_s: float


class BatchScheduler:
    """Queue, running batches and instances of one batch engine."""

    def __init__(self, engine: Engine, ids: count[int]) -> None:
        self.engine = engine
        self.queue: list[Work] = []
        self.not_before_s: float | None = None
        self._policy = POLICIES[engine.policy]
        self._policy_config = PolicyConfig.of(engine)
        self._ids = ids
        self._running: list[_Batch | None] = [None] * engine.instances
        self._assigned_s = [0.0] * engine.instances
        self._touched: dict[str, set[int]] = {}
        self._leaving: set[str] = set()

    def add(self, work: Work, now_s: float) -> None:
        """Work has become ready."""
        work.arrival_s = now_s
        self.queue.append(work)

    def done(self, instance: int, batch_id: int, results: Sequence[object]) -> list[Report]:
        """A batch was answered. Late answers, of batches already given up, are ignored."""
        batch = self._take(instance, batch_id)
        if batch is None:
            return []
        if isinstance(results, str) or not isinstance(results, Sequence):
            message = f"the engine answered a {type(results).__name__}, not a list"
            return self._retry_apart(batch, BadReply(message))
        if len(results) != len(batch.tasks):
            message = f"the engine answered {len(results)} of {len(batch.tasks)} tasks"
            return self._retry_apart(batch, BadReply(message))
        reports: list[Report] = []
        for (work, lo, hi), task, result in zip(batch.parts, batch.tasks, results, strict=True):
            reports.append(completed(work, lo, hi, task.num_items, result))
        return reports

    def failed(self, instance: int, batch_id: int, error: StrettoError) -> list[Report]:
        """A batch failed as a whole."""
        batch = self._take(instance, batch_id)
        if batch is None:
            return []
        return self._retry_lost(batch, error) if is_worth_retrying(error) else self._retry_apart(batch, error)

    def lost(self, instance: int, error: StrettoError) -> list[Report]:
        """An instance died."""
        batch = self._running[instance]
        if batch is None:
            return []
        self._running[instance] = None
        return self._retry_lost(batch, error)

    def expire(self, now_s: float) -> tuple[list[Report], list[Action]]:
        """Give up instances that have not answered in time."""
        reports: list[Report] = []
        actions: list[Action] = []
        for instance, batch in enumerate(self._running):
            if (
                batch is None
                or self.engine.timeout_s is None
                or now_s < batch.started_s + self.engine.timeout_s
            ):
                continue
            error = EngineTimeout(
                f"engine {self.engine.name!r} gave no answer for {self.engine.timeout_s:g} s"
            )
            reports += self.lost(instance, error)
            actions.append(Restart(self.engine.name, instance))
        return reports, actions

    def next_expiry_s(self) -> float | None:
        """When `expire` may next have something to do."""
        if self.engine.timeout_s is None:
            return None
        started = [batch.started_s for batch in self._running if batch is not None]
        return min(started) + self.engine.timeout_s if started else None

    def schedule(self, now_s: float) -> list[Action]:
        """Start a batch on every idle instance, as far as the work goes."""
        actions: list[Action] = []
        self.not_before_s = None
        while self.queue:
            idle = [i for i, batch in enumerate(self._running) if batch is None]
            if not idle:
                break
            take = self._select(now_s)
            if not take:
                break
            instance = min(idle, key=self._assigned_s.__getitem__)
            actions.append(self._start(instance, take, now_s))
        return actions

    def want(self, query: str, wanted: Collection[int]) -> None:
        """Other nodes of a query are wanted than before."""
        for work in self.queue:
            if work.query == query:
                work.is_wanted = work.node.id in wanted

    def withdraw(self, query: str, node: int, now_s: float) -> list[Action]:
        """Drop what waits of a node; what runs of it is answered in vain."""
        self.queue = [work for work in self.queue if (work.query, work.node.id) != (query, node)]
        return []

    def queries(self) -> Iterator[str]:
        """The queries of which anything waits or runs."""
        yield from dict.fromkeys(work.query for work in list(self.queue))
        for instance in range(len(self._running)):
            yield from self.queries_in(instance)

    def queries_in(self, instance: int) -> list[str]:
        """The queries that an instance runs something of."""
        batch = self._running[instance]
        return [] if batch is None else [work.query for work, _, _ in batch.parts]

    def end_query(self, query: str) -> list[Action]:
        """Drop what waits for `query`; let go of its state once nothing of it runs."""
        self.queue = [work for work in self.queue if work.query != query]
        self._leaving.add(query)
        return self.releases()

    def releases(self) -> list[Action]:
        """`Release` for ended queries of which nothing runs any more."""
        if not self._leaving:
            return []
        busy = {work.query for batch in self._running if batch for work, _, _ in batch.parts}
        actions: list[Action] = []
        for query in sorted(self._leaving - busy):
            self._leaving.discard(query)
            for instance in sorted(self._touched.pop(query, ())):
                actions.append(Release(self.engine.name, instance, query))
        return actions

    def picture(self) -> EnginePicture:
        """What waits and what runs."""
        num_running = tuple(0 if batch is None else len(batch.tasks) for batch in self._running)
        return EnginePicture(self.engine.name, sum(work.hi - work.lo for work in self.queue), num_running)

    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.queue and not any(self._running)

    def check_invariants(self) -> None:
        """For tests: no empty work, budgets hold, nothing waits while an instance idles."""
        assert all(work.lo < work.hi for work in self.queue)
        for batch in self._running:
            if batch is not None:
                units = sum(work.units_of(lo, hi) for work, lo, hi in batch.parts)
                single = len(batch.parts) == 1 and batch.parts[0][2] - batch.parts[0][1] == 1
                assert units <= self.engine.batch_units or single
        assert not self.queue or all(self._running) or self.not_before_s is not None

    def _select(self, now_s: float) -> list[tuple[Work, int]]:
        alone = next((work for work in self.queue if work.alone), None)
        if alone is not None:
            return [(alone, max(1, alone.count_within(self.engine.batch_units)))]
        queue = wanted_first(self.queue)
        selection = self._policy(queue, self.engine.batch_units, now_s, self._policy_config)
        if selection.take or selection.not_before_s is not None:
            self.not_before_s = selection.not_before_s
            return selection.take
        unbounded = self._policy(queue, _UNBOUNDED, now_s, self._policy_config).take
        oversize = unbounded[0][0] if unbounded else queue[0]
        return [(oversize, 1)]

    def _start(self, instance: int, take: list[tuple[Work, int]], now_s: float) -> StartBatch:
        parts = []
        tasks = []
        for work, num_items in take:
            lo, hi = work.lo, work.lo + num_items
            work.lo = hi
            parts.append((work, lo, hi))
            tasks.append(self._task(work, lo, hi))
            if self.engine.keeps_state:
                self._touched.setdefault(work.query, set()).add(instance)
        self.queue = [work for work in self.queue if work.lo < work.hi]
        batch = _Batch(next(self._ids), tuple(parts), tuple(tasks), now_s)
        self._running[instance] = batch
        units = sum(work.units_of(lo, hi) for work, lo, hi in parts)
        self._assigned_s[instance] += self.engine.profile.batch_s(units)
        return StartBatch(self.engine.name, instance, batch.id, batch.tasks, units)

    def _task(self, work: Work, lo: int, hi: int) -> Task:
        node = work.node
        if not work.each:
            return Task(next(self._ids), work.query, node.name, node.op, work.inputs, node.config)
        inputs = dict(work.inputs)
        for port in work.each:
            column = inputs[port]
            assert isinstance(column, Sequence)
            inputs[port] = column[lo - work.base : hi - work.base]
        return Task(next(self._ids), work.query, node.name, node.op, inputs, node.config, hi - lo, work.each)

    def _take(self, instance: int, batch_id: int) -> _Batch | None:
        batch = self._running[instance]
        if batch is None or batch.id != batch_id:
            return None
        self._running[instance] = None
        return batch

    def _retry_lost(self, batch: _Batch, error: StrettoError) -> list[Report]:
        """The instance was at fault, or a task killed it: try each again alone, so that it kills no other."""
        reports: list[Report] = []
        again = []
        for work, lo, hi in batch.parts:
            if work.query in self._leaving:
                continue
            if work.attempt + 1 >= self.engine.max_attempts:
                reports.append(failed(work, lo, hi, error))
            else:
                again.append(work.again(lo, hi, attempt=work.attempt + 1, alone=True))
        self.queue[:0] = again
        return reports

    def _retry_apart(self, batch: _Batch, error: StrettoError) -> list[Report]:
        """Some item was at fault: run each task alone, then each item; one that fails alone has failed."""
        if len(batch.parts) == 1:
            work, lo, hi = batch.parts[0]
            if hi - lo == 1:
                return [failed(work, lo, hi, error)]
            parts = [(work, i, i + 1) for i in range(lo, hi)]
        else:
            parts = list(batch.parts)
        parts = [(work, lo, hi) for work, lo, hi in parts if work.query not in self._leaving]
        self.queue[:0] = [work.again(lo, hi, attempt=work.attempt, alone=True) for work, lo, hi in parts]
        return []
