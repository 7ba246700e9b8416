"""Answers that were shown in part, which only a replica of the same model and dtype may continue."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stretto.errors import EngineUnavailable
from stretto.sched.engine_queue import EngineQueue
from stretto.sched.request import Entry
from stretto.sched.results import Completed, failed


class ShownParts:
    """The requests that no serving instance may continue; they are set aside, so that they hold up no others.

    A request comes back when a like replica serves. It fails when there has been none for `no_replica_s`, not
    even one that is starting.
    """

    def __init__(self, queue: EngineQueue, engine: str, no_replica_s: float) -> None:
        self._queue = queue
        self._engine = engine
        self._no_replica_s = no_replica_s
        self._hopeless_s: dict[Entry, float] = {}

    def update(self, serving: Sequence[object], live: Sequence[object], now_s: float) -> None:
        """Put requests back into the queue that a serving instance may continue.

        Args:
            serving: `Replica.output_key` of each instance that takes work.
            live: `Replica.output_key` of each instance that takes work or may do so later.
        """
        aside = self._queue.aside
        self._hopeless_s = {entry: since_s for entry, since_s in self._hopeless_s.items() if entry in aside}
        for entry in aside:
            if entry.said_by in live:
                self._hopeless_s.pop(entry, None)
            else:
                self._hopeless_s.setdefault(entry, now_s)
            if entry.said_by in serving:
                self._queue.bring_back(entry)

    def due_s(self) -> float | None:
        """Return when `overdue` may next return something, None for never."""
        due_s = min(map(self._limit_s, self._hopeless_s), default=math.inf)
        return None if due_s == math.inf else due_s

    def overdue(self, now_s: float) -> list[Completed]:
        """Give up the requests that have waited long enough for a like replica; return their failures."""
        error = EngineUnavailable(
            f"a part of the answer was shown, and engine {self._engine!r} has no replica of that model and "
            "dtype any more to go on with it"
        )
        aside = self._queue.aside
        found = [entry for entry in aside if entry in self._hopeless_s and self._limit_s(entry) <= now_s]
        for entry in found:
            del self._hopeless_s[entry]
            self._queue.drop_aside(entry)
        return [failed(entry.request, entry.lo, entry.hi, error) for entry in found]

    def _limit_s(self, entry: Entry) -> float:
        return self._hopeless_s[entry] + self._no_replica_s
