"""The deadlines of queries, and of callers that wait for variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.messages import Unwant


@dataclass(frozen=True, slots=True)
class Expired:
    """Event: the deadline of a query has passed, so that the query ends with `DeadlineExceeded`."""

    query: str


Due: TypeAlias = Expired | Unwant
_Key: TypeAlias = tuple[float, str, str, str]


class Deadlines:
    """The deadlines that are still to come, of queries and of callers that wait for a
    variable, sorted by time.

    Each operation takes O(log n).
    """

    def __init__(self) -> None:
        self._sorted = SortedQueue[Due]()
        self._counts: dict[str, dict[_Key, int]] = {}

    @property
    def next_s(self) -> float | None:
        """The time of the earliest deadline, by the clock of the runtime or the simulator; None if there is
        none.
        """
        return float(self._sorted.first_key[0]) if self._sorted else None

    def add(self, due_s: float, due: Due) -> None:
        """Add a deadline at the time `due_s`. When that time has passed, `take` returns `due`, which says
        whose deadline it was.

        The same deadline may be added several times, for example by several callers; then `take` returns it
        as often.
        """
        key, counts = _key(due_s, due), self._counts.setdefault(due.query, {})
        if key not in counts:
            self._sorted.add(key, due)
        counts[key] = counts.get(key, 0) + 1

    def remove(self, due_s: float, due: Due) -> None:
        """Remove a deadline that was added, once if it was added several times; nothing happens if it is not
        there.
        """
        key, counts = _key(due_s, due), self._counts.get(due.query, {})
        if key not in counts:
            return
        counts[key] -= 1
        if counts[key] == 0:
            del counts[key]
            self._sorted.remove(key)
        if not counts:
            del self._counts[due.query]

    def end_query(self, query: str) -> None:
        """Remove all deadlines of a query and of the callers that wait for its variables."""
        for key in self._counts.pop(query, {}):
            self._sorted.remove(key)

    def take(self, now_s: float) -> list[Due]:
        """Remove the deadlines that have passed by `now_s`; return the `due` of each, as often as it was
        added.
        """
        found: list[Due] = []
        while self._sorted and self._sorted.first_key[0] <= now_s:
            key, due = self._sorted.first_key, self._sorted.first
            self._sorted.remove(key)
            counts = self._counts[due.query]
            found += [due] * counts.pop(key)
            if not counts:
                del self._counts[due.query]
        return found


def _key(due_s: float, due: Due) -> _Key:
    """Return a sort key: keys of queries come before those of their readers."""
    if isinstance(due, Expired):
        return due_s, due.query, "", ""
    return due_s, due.query, f"reader of {due.name}", due.criteria or ""
