"""Requests whose answers were shown in part, so that only a replica of the same model and dtype may continue
them.
"""

from __future__ import annotations

import math

from stretto.cluster.fleet import Fleet
from stretto.deployment import Engine
from stretto.errors import EngineUnavailable
from stretto.sched.engine_queue import EngineQueue
from stretto.sched.llm_loads import InstanceLoads
from stretto.sched.request import Entry
from stretto.sched.results import Completed, failed
from stretto.sched.run_apart import RunApart


class ShownParts:
    """The waiting requests whose answers were shown in part to a caller before their instance was lost, and
    which only a replica of the same model and dtype may continue, while no such replica serves; and those
    that have to run apart.

    They are set aside in the queue, so that they hold up no others. A request comes back when such a replica
    serves. It fails when there has been none, not even one that is starting, for the engine's `no_replica_s`
    seconds.
    """

    def __init__(
        self, queue: EngineQueue, engine: Engine, fleet: Fleet, loads: InstanceLoads, apart: RunApart
    ) -> None:
        self._apart = apart
        self._queue = queue
        self._engine = engine
        self._fleet = fleet
        self._loads = loads
        self._unlike: list[Entry] = []
        self._hopeless_s: dict[Entry, float] = {}

    def may_go_out(self, entry: Entry) -> bool:
        """Return whether an entry (queued work) may be sent to an instance: no part of its answer was shown,
        or a serving instance has the same model and dtype; and it need not wait to run apart.

        The next `set_aside` takes an entry that may not be sent out of the queue's order.
        """
        if self._can_go_on(entry) and self._apart.may_go_out(entry):
            return True
        self._unlike.append(entry)
        return False

    def set_aside(self, now_s: float) -> bool:
        """Take the entries (queued work) that `may_go_out` has refused out of the queue's order, so that they
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
        """Forget all entries (queued work) recorded here, because the queue has been emptied."""
        self._unlike.clear()
        self._hopeless_s.clear()

    def update(self, now_s: float) -> None:
        """Put entries (queued work) that were set aside, because no instance could continue their answers,
        back into the queue's order if one can now.
        """
        aside = self._queue.aside
        if not aside and not self._hopeless_s:
            return
        self._hopeless_s = {entry: since_s for entry, since_s in self._hopeless_s.items() if entry in aside}
        states = self._fleet.state
        live = [self._fleet.replica(i).output_key for i in self._fleet.live if states[i] != "draining"]
        for entry in aside:
            if not entry.is_shown or entry.said_by in live:
                self._hopeless_s.pop(entry, None)
            else:
                self._hopeless_s.setdefault(entry, now_s)
            if self._can_go_on(entry) and self._apart.may_go_out(entry):
                self._queue.bring_back(entry)

    def due_s(self) -> float | None:
        """Return the earliest time at which a waiting request fails because no replica of the model and dtype
        that began its answer has served for too long; None if no request waits without such a replica.
        """
        if not self._hopeless_s:
            return None
        due_s = min(map(self._limit_s, self._hopeless_s))
        return None if due_s == math.inf else due_s

    def overdue(self, now_s: float) -> list[Completed]:
        """Remove the requests that have waited too long for a replica of the model and dtype that began their
        answers; return reports of their failures.
        """
        error = EngineUnavailable(
            f"a part of the answer was shown, and engine {self._engine.name!r} has no replica of that model "
            "and dtype any more to go on with it"
        )
        aside = self._queue.aside
        found = [entry for entry in aside if entry in self._hopeless_s and self._limit_s(entry) <= now_s]
        for entry in found:
            del self._hopeless_s[entry]
            self._queue.drop_aside(entry)
        return [failed(entry.request, entry.lo, entry.hi, error) for entry in found]

    def _can_go_on(self, entry: Entry) -> bool:
        return not entry.is_shown or entry.said_by in self._loads.output_keys()

    def _limit_s(self, entry: Entry) -> float:
        return self._hopeless_s[entry] + self._engine.no_replica_s
