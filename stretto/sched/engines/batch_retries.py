"""What becomes of the work of a batch that failed: it is tried again elsewhere, or task by task, or fails.

An effect that must not happen twice is in a batch of its own and never run again: its query fails where it
may have happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set

from stretto.cluster.fleet import Fleet
from stretto.cluster.messages import InstanceId
from stretto.model.errors import EffectInDoubt, StrettoError
from stretto.model.record import record
from stretto.model.replica import Engine
from stretto.model.tasks import Task
from stretto.sched.engines.idle_instances import BatchPart, KeptState
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.queries.request import QueueEntry
from stretto.sched.queries.results import Report, failed, is_attempt


@record
class RunningBatch:
    """A batch that is running; its parts are (entry, lo, hi): items `lo` to `hi` of a queue entry."""

    id: int
    parts: tuple[BatchPart, ...]
    tasks: tuple[Task, ...]
    num_units: int
    num_tokens: int | None
    started_s: float


class BatchRetries:
    """Queues the work of failed batches again, and says where it may run.

    Attributes:
        wronged: work that waits for other instances than those that have answered it wrongly, and until when.
    """

    def __init__(self, engine: Engine, fleet: Fleet, queue: EngineQueue, kept: KeptState) -> None:
        self._engine = engine
        self._fleet = fleet
        self._queue = queue
        self._kept = kept
        self.wronged: deque[tuple[float, QueueEntry]] = deque()

    def expire(self, now_s: float) -> None:
        """Let work run everywhere that has waited long enough for other instances."""
        while self.wronged and self.wronged[0][0] <= now_s:
            self.wronged.popleft()[1].wrong_at = frozenset()

    def clear(self) -> None:
        """Forget what waits for other instances, as all waiting work is dropped."""
        self.wronged.clear()

    def lost(self, batch: RunningBatch, error: StrettoError, avoids: Set[int] = frozenset()) -> list[Report]:
        """Queue the tasks of a lost batch again, each alone: one of them may have killed the instance. A
        refusal before the batch was begun is no attempt, unless there were such for `recover_s` seconds, and
        neither is what a server has answered that answers nobody well. The
        tasks avoid the slot of an instance that lives and has failed.
        """
        reports: list[Report] = []
        sent_s = batch.started_s
        was_attempt = is_attempt(error)
        for entry, lo, hi in batch.parts:
            if self._kept.is_leaving(entry.query):
                continue
            if entry.request.node.runs_once:
                reports.append(failed(entry.request, lo, hi, _in_doubt(entry, error)))
            elif entry.attempt + was_attempt >= self._engine.max_attempts or entry.is_refused_too_long(
                self._engine.recover_s, sent_s
            ):
                reports.append(failed(entry.request, lo, hi, error))
            else:
                again = entry.again(lo, hi, attempt=entry.attempt + was_attempt, alone=True)
                again.after(error, avoids, sent_s, was_attempt=was_attempt)
                self._queue_again(again, sent_s)
        return reports

    def apart(self, batch: RunningBatch, error: StrettoError) -> list[Report]:
        """Queue a failed batch again task by task, then item by item; an item that fails alone has failed."""
        parts = list(batch.parts)
        if len(parts) == 1:
            entry, lo, hi = parts[0]
            if hi - lo == 1:
                return [failed(entry.request, lo, hi, error)]
            parts = [(entry, item, item + 1) for item in range(lo, hi)]
        for entry, lo, hi in parts:
            if not self._kept.is_leaving(entry.query):
                self._queue_again(entry.again(lo, hi, attempt=entry.attempt, alone=True), batch.started_s)
        return []

    def may_run(self, entry: QueueEntry, instance: InstanceId) -> bool:
        """Return whether work may run at an instance: it has not failed there, or everywhere that serves. It
        does not run where it was answered wrongly, while another one may answer it, even later.
        """
        slot_of, avoids = self._fleet.slot, entry.avoids
        if slot_of(instance) in entry.wrong_at and self.has_untried(entry.wrong_at):
            return False
        return (
            not avoids
            or slot_of(instance) not in avoids
            or all(slot_of(other) in avoids for other in self._fleet.serving)
        )

    def has_untried(self, tried: Set[int]) -> bool:
        """Return whether an instance serves, or may serve later, that is in none of some slots."""
        fleet = self._fleet
        return any(fleet.state[one] != "draining" and fleet.slot(one) not in tried for one in fleet.live)

    def _queue_again(self, entry: QueueEntry, sent_s: float) -> None:
        """Queue what is tried again. If it was answered wrongly, it waits for other instances for some time,
        counted from the start of its last batch.
        """
        if entry.wrong_at:
            self.wronged.append((sent_s + self._fleet.wait_s(self._engine.recover_s), entry))
        self._queue.add(entry)


def _in_doubt(entry: QueueEntry, error: StrettoError) -> EffectInDoubt:
    in_doubt = EffectInDoubt(
        f"the effect had begun when its instance was lost ({error.message}); it may have happened, so it is "
        "not tried again; if its tool takes an idempotency key, give the call the setting idempotent=true",
        step=entry.request.step,
    )
    in_doubt.__cause__ = error
    return in_doubt
