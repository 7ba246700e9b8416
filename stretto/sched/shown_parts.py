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


class ShownParts:
    """The requests whose answers were shown in part, so that only a replica of the same model and dtype may
    continue them, and that wait because no such replica serves.

    They are set aside in the queue, so that they hold up no others. A request comes back when such a replica
    serves. It fails when there has been none, not even one that is starting, for the engine's `no_replica_s`
    seconds.
    """

    def __init__(self, queue: EngineQueue, engine: Engine, fleet: Fleet, loads: InstanceLoads) -> None:
        self._queue = queue
        self._engine = engine
        self._fleet = fleet
        self._loads = loads
        self._unlike: list[Entry] = []
        self._hopeless_s: dict[Entry, float] = {}

    def may_go_out(self, entry: Entry) -> bool:
        """Return whether an entry (queued work) may be sent: no part of its answer was shown, or a serving
        instance has the same model and dtype.

        An entry that may not is taken out of the order by the next `set_aside`.
        """
        if not entry.is_shown or entry.said_by in self._loads.output_keys():
            return True
        self._unlike.append(entry)
        return False

    def set_aside(self, now_s: float) -> bool:
        """Set aside, in the queue, the entries (queued work) that `may_go_out` has refused, so that they do
        not hold up others; return whether there were any.
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
        """Put entries (queued work) that were set aside back into the queue's order, if some serving instance
        can continue them now.
        """
        aside = self._queue.aside
        self._hopeless_s = {entry: since_s for entry, since_s in self._hopeless_s.items() if entry in aside}
        if not aside:
            return
        states = self._fleet.state
        live = [self._fleet.replica(i).output_key for i in self._fleet.live if states[i] != "draining"]
        for entry in aside:
            if entry.said_by in live:
                self._hopeless_s.pop(entry, None)
            else:
                self._hopeless_s.setdefault(entry, now_s)
            if entry.said_by in self._loads.output_keys():
                self._queue.bring_back(entry)

    def due_s(self) -> float | None:
        """Return the earliest time at which an entry (queued work) fails because it has waited too long for a
        replica of the same model and dtype; None if none waits without hope.
        """
        due_s = min(map(self._limit_s, self._hopeless_s), default=math.inf)
        return None if due_s == math.inf else due_s

    def overdue(self, now_s: float) -> list[Completed]:
        """Remove the requests that have waited too long for a replica of the same model; return reports of
        their failures.
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

    def _limit_s(self, entry: Entry) -> float:
        return self._hopeless_s[entry] + self._engine.no_replica_s
