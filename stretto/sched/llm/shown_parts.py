"""Requests that no instance can take now that serves, though other requests go out.

One kind has an answer that was shown in part: only a replica of the same model and dtype may continue it.
Another is larger than every instance that serves, while one that may be down is large enough. A third was
answered wrongly by every instance that serves, as by servers that have another model. The last has to run
apart: it was lost with an LLM instance, which it may have killed. The first time, all that shared the
instance are tried again together: most instances die of something else. The last attempt is made apart: such
a request goes out when no other one that was lost with an instance runs, and no such other goes out
meanwhile. So a request that kills every instance fails by itself, and those that happened to share its
instances end well.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from stretto.cluster.fleet import Fleet
from stretto.model.errors import EngineUnavailable
from stretto.model.record import record
from stretto.model.replica import Engine
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.loads import InstanceLoads
from stretto.sched.queries.request import QueueEntry
from stretto.sched.queries.results import Completed, failed


class RunApart:
    """A count of the requests that run and were lost with an instance before."""

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._num_running = 0
        self._num_last = 0

    def may_go_out(self, entry: QueueEntry) -> bool:
        """Return whether a queued request may be sent now, as far as the others that were lost matter."""
        if not entry.is_suspected:
            return True
        return self._num_running == 0 if self._is_last(entry) else self._num_last == 0

    def add(self, entry: QueueEntry) -> None:
        """Count a request that is sent to an instance."""
        self._num_running += entry.is_suspected
        self._num_last += self._is_last(entry)

    def remove(self, entry: QueueEntry) -> None:
        """Count a request that has left its instance no longer."""
        self._num_running -= entry.is_suspected
        self._num_last -= self._is_last(entry)

    def _is_last(self, entry: QueueEntry) -> bool:
        return entry.is_suspected and entry.attempt >= self._max_attempts - 1


Hope: TypeAlias = Literal["start", "recovery", "none"]
"""The best state of an instance that could take an entry: starting, suspect, or none."""


@record
class _Wait:
    """Since when an entry that was set aside has had the same hope."""

    hope: Hope
    since_s: float


class ShownParts:
    """The waiting requests that only instances could take which do not serve now, while others serve: above
    all those whose answers were shown in part to a caller before their instance was lost, and those that
    every serving instance has answered wrongly; those that may not go everywhere, while there is no room
    where they may; and those that have to run apart.

    They are set aside in the queue, so that they hold up no others. A request comes back when such an
    instance serves. It fails when there has been none, not even one that is starting or suspect,
    for the engine's `no_replica_s` seconds; and when there were only suspect ones for `recover_s`
    seconds, unless it has a deadline.
    """

    def __init__(
        self, queue: EngineQueue, engine: Engine, fleet: Fleet, loads: InstanceLoads, apart: RunApart
    ) -> None:
        self._apart = apart
        self._queue = queue
        self._engine = engine
        self._fleet = fleet
        self._loads = loads
        self._unlike: list[QueueEntry] = []
        self._waits: dict[QueueEntry, _Wait] = {}

    def may_go_out(self, entry: QueueEntry) -> bool:
        """Return whether an entry may be sent to an instance, or keep others waiting for that:
        one serves that could take it, or none serves at all; and it need not wait to run apart.

        The next `set_aside` takes an entry that may not be sent out of the queue's order.
        """
        if self._loads.eligible.has_host(entry) and self._may_have_turn(entry):
            return True
        self._unlike.append(entry)
        return False

    def set_aside(self, now_s: float) -> bool:
        """Take the entries that `may_go_out` has refused out of the queue's order, so that they
        do not hold up others; return whether there were any.
        """
        if not self._unlike:
            return False
        for entry in dict.fromkeys(self._unlike):
            self._queue.set_aside(entry)
        self._unlike.clear()
        self.update(now_s)
        return True

    def clear(self) -> None:
        """Forget all entries recorded here, because the queue has been emptied."""
        self._unlike.clear()
        self._waits.clear()

    def update(self, now_s: float) -> None:
        """Put entries that were set aside, because no instance that serves could take them,
        back into the queue's order if one can now.
        """
        aside = tuple(self._queue.aside)
        if not aside and not self._waits:
            return
        waits, self._waits = self._waits, {}
        for entry in aside:
            if entry.wrong_at and not self._loads.eligible.has_host(entry) and self._hope(entry) == "none":
                entry.wrong_at = frozenset()  # nobody else is to come, so the next wrong answer is the last
            if not self._loads.eligible.has_host(entry):
                wait, hope = waits.get(entry), self._hope(entry)
                self._waits[entry] = wait if wait and wait.hope == hope else _Wait(hope, now_s)
            elif self._may_have_turn(entry):
                self._queue.bring_back(entry)

    def due_s(self) -> float | None:
        """Return the earliest time at which a waiting request fails because no instance has served for too
        long that could take it; None if there is none.
        """
        if not self._waits:
            return None
        due_s = min(map(self._limit_s, self._waits))
        return None if due_s == math.inf else due_s

    def overdue(self, now_s: float) -> list[Completed]:
        """Remove the requests that have waited too long for an instance that could take them; return reports
        of their failures.
        """
        late: list[Completed] = []
        aside = self._queue.aside
        for entry in [entry for entry in aside if entry in self._waits and self._limit_s(entry) <= now_s]:
            error = self._unavailable(entry, self._waits.pop(entry).hope)
            late.append(failed(entry.request, entry.lo, entry.hi, error))
            self._queue.remove(entry)
        return late

    def check_invariants(self) -> None:
        """Check that no request is set aside that an instance could take. For tests."""
        for entry in self._queue.aside:
            assert not (self._loads.eligible.has_host(entry) and self._may_have_turn(entry)), (
                "it waits for nothing"
            )

    def _may_have_turn(self, entry: QueueEntry) -> bool:
        return self._apart.may_go_out(entry) and self._loads.eligible.may_hold_up(entry)

    def _hope(self, entry: QueueEntry) -> Hope:
        """Return what an entry may hope for that no serving instance can take."""
        fleet = self._fleet
        states = {
            fleet.state[instance]
            for instance in fleet.live
            if entry.like in (None, fleet.replica(instance).output_key)
            and fleet.slot(instance) not in entry.wrong_at
        }
        return "start" if "starting" in states else "recovery" if "suspect" in states else "none"

    def _limit_s(self, entry: QueueEntry) -> float:
        wait = self._waits[entry]
        match wait.hope:
            case "start":
                return math.inf
            case "recovery":
                has_deadline = entry.request.record.deadline_s is not None
                return math.inf if has_deadline else wait.since_s + self._fleet.wait_s(self._engine.recover_s)
        return wait.since_s + self._engine.no_replica_s

    def _unavailable(self, entry: QueueEntry, hope: Hope) -> EngineUnavailable:
        name = self._engine.name
        if hope == "none":
            return EngineUnavailable(
                f"a part of the answer was shown, and engine {name!r} has no replica of that model and dtype "
                "any more to go on with it"
            )
        what = (
            "goes on with what was shown of it"
            if entry.is_shown
            else "has not answered it wrongly"
            if entry.wrong_at
            else "is large enough for it"
        )
        return EngineUnavailable(
            f"every instance of engine {name!r} that {what} has been down for "
            f"{self._fleet.wait_s(self._engine.recover_s):g} s: {self._fleet.last_error}"
        )
