"""The filling of batches: which waiting work goes to which idle instance of a batch engine, and what an
instance is told of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from stretto.cluster.fleet import Fleet
from stretto.cluster.messages import InstanceId
from stretto.model.errors import InternalError
from stretto.model.foreign import raised
from stretto.model.references import load_inputs
from stretto.model.replica import Engine
from stretto.model.tasks import Task
from stretto.sched.engines.batch_retries import BatchRetries
from stretto.sched.engines.idle_instances import BatchPart, IdleInstances
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.orders.order import Hold
from stretto.sched.queries.request import QueueEntry, StepRequest

FilledBatch: TypeAlias = tuple[InstanceId, list[BatchPart], int]
"""An instance, what is to run there as one batch, and its units of work."""


class BatchFilling:
    """Fills batches for idle instances from the queue of an engine.

    Attributes:
        not_before_s: time before which the order starts no further batch, as found by the last `batches`;
            None if it need not wait.
        parts: what was taken for a batch that has not been yielded yet.
    """

    def __init__(
        self,
        engine: Engine,
        fleet: Fleet,
        queue: EngineQueue,
        idle: IdleInstances,
        retries: BatchRetries,
    ) -> None:
        self._engine = engine
        self._fleet = fleet
        self._queue = queue
        self._idle = idle
        self._retries = retries
        self.not_before_s: float | None = None
        self.parts: list[BatchPart] = []

    def clear(self) -> None:
        """Forget what was taken for a batch."""
        self.parts = []

    def batches(self, now_s: float) -> Iterator[FilledBatch]:
        """Yield a batch for every idle instance, as long as work waits. The caller must start each before it
        asks for the next.

        Work that is put into a batch counts as started only when all batches are filled, so that sort keys of
        the rest do not change while batches are being filled.
        """
        taken: list[BatchPart] = []
        passed: list[InstanceId] = []
        self.not_before_s = None
        while self._idle.keys and self._queue.num_entries:
            instance = self._idle.first()
            room = self.budget(instance)
            parts, num_units = self._queue.take_all(room)
            self.parts = parts
            if not parts:
                num_units = self._fill(parts, instance, room, now_s)
                taken += parts
            if parts:
                yield instance, parts, num_units
                self.parts = []
            elif self.not_before_s is None:
                passed.append(instance)
                self._idle.rest(instance)
            else:
                break
        for instance in passed:
            self._idle.add(instance)
        for entry, lo, hi in taken:
            self._queue.started(entry, lo, hi)

    def budget(self, instance: InstanceId) -> int:
        """Return the units that one batch may have on an instance."""
        if self._engine.max_batch is not None:
            return self._engine.max_batch
        return self._fleet.replica(instance).profile.max_efficient_batch

    def _fill(self, parts: list[BatchPart], instance: InstanceId, budget: int, now_s: float) -> int:
        """Add the parts of one batch of at most `budget` units for an instance to `parts`, taken from the
        queue; return their units of work.
        """
        room = budget
        alone = next((one for one in self._queue.alone if self._retries.may_run(one, instance)), None)
        if alone is not None:
            parts.append(self._take(alone, max(1, alone.count_within(room))))
            return alone.units_of(*parts[-1][1:])

        def fits(entry: QueueEntry) -> int:
            return 0 if parts and entry.request.node.runs_once else entry.count_within(room)

        while room > 0:
            chosen = self._queue.choose(0 if parts else room, fits, now_s)
            if chosen is None and not parts:  # items that exceed a whole batch run alone
                chosen = self._queue.choose(room, lambda entry: 1, now_s)
                if chosen is None and len(self._queue) > len(self._queue.alone):
                    raise InternalError(f"the order {self._engine.policy!r} takes nothing of what waits")
            if isinstance(chosen, Hold):
                self.not_before_s = chosen.until_s
            if chosen is None or isinstance(chosen, Hold):
                break
            parts.append(self._take(chosen.entry, chosen.num_items))
            room -= chosen.entry.units_of(*parts[-1][1:])
            if chosen.ends_batch or chosen.entry.request.node.runs_once:
                break
        return budget - room

    def _take(self, entry: QueueEntry, num_items: int) -> BatchPart:
        lo = self._queue.take(entry, num_items)
        return entry, lo, lo + num_items


def task_of(task: int, entry: QueueEntry, lo: int, hi: int, others_serve: bool) -> Task:
    """Return the task with this number that runs items `lo` to `hi` of an entry.

    Args:
        others_serve: whether another instance could run it too.
    """
    request = entry.request
    node = request.node
    inputs, num_items = request.inputs, None
    if request.each:
        inputs, num_items = _part_of(request, lo, hi), hi - lo
    return Task(
        task,
        request.query,
        node.name,
        node.op,
        inputs,
        node.config,
        num_items,
        request.each,
        request.record.tenant,
        others_serve,
    )


def _part_of(request: StepRequest, lo: int, hi: int) -> Mapping[str, object]:
    """Return the inputs of items `lo` to `hi` of a request."""
    inputs = dict(request.inputs)
    for port in request.each:
        column = inputs[port]
        assert isinstance(column, Sequence)
        inputs[port] = column[lo - request.lo : hi - request.lo]
    return inputs


def num_batch_tokens(parts: Iterable[tuple[QueueEntry, int, int]]) -> int | None:
    """Return the estimated tokens of the texts of a batch, whose parts are items `lo` to `hi` of entries.

    None if the time of a part's op does not depend on texts, or if its inputs are no texts or lost, as its
    engine will say.
    """
    num_tokens = 0
    for entry, lo, hi in parts:
        request = entry.request
        tokens_of = request.node.spec.tokens
        if tokens_of is None:
            return None
        for item in range(lo - request.lo, hi - request.lo):
            row = {
                port: value[item] if port in request.each else value  # type: ignore[index]
                for port, value in request.inputs.items()
            }
            try:
                num_tokens += tokens_of(load_inputs(row))
            except raised():
                return None
    return num_tokens
