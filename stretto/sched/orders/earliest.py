"""Which queue entry has waited longest, and the share of admissions that it has once it is overdue."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from stretto.sched.queries.request import QueueEntry

_SPARE = 64


class Earliest:
    """A set of queue entries (an entry is one step's queued work) from which the one that has waited longest
    is found quickly.

    Entries that have been removed stay in the heap until they are at its top, or until they are more than
    half of it.
    """

    def __init__(self) -> None:
        self._entries: dict[int, QueueEntry] = {}
        self._arrivals: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> QueueEntry:
        """The entry that has waited longest. Raises IndexError if there is none."""
        arrivals, entries = self._arrivals, self._entries
        while (entry := entries.get(arrivals[0][1])) is None:
            heappop(arrivals)
        return entry

    @property
    def first_s(self) -> float:
        """Time since which the longest-waiting entry of the set has waited.

        Raises IndexError if the set is empty.
        """
        while self._arrivals[0][1] not in self._entries:
            heappop(self._arrivals)
        return self._arrivals[0][0]

    def add(self, entry: QueueEntry, since_s: float) -> None:
        """Add an entry that counts as waiting since the time `since_s`."""
        self._entries[entry.number] = entry
        heappush(self._arrivals, (since_s, entry.number))

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry that no longer waits."""
        del self._entries[entry.number]
        if len(self._arrivals) > 2 * len(self._entries) + _SPARE:
            self._arrivals = [one for one in self._arrivals if one[1] in self._entries]
            heapify(self._arrivals)


EVERY = 512
"""While the oldest entry is overdue, at least one of so many units of work that are taken is its own."""


class Overdue:
    """The waiting entries of an order, of which the oldest has a claim after a time.

    An order that prefers some work lets other work wait, perhaps for ever. So beyond the age limit the oldest
    gets the first place, and then a share of the work that is taken, one unit of `EVERY`. It does not get
    all of it: under a load in which everything waits for longer than the limit, the order would be that of
    arrival. Work is counted, not choices: what has waited long is often large, as its prefix is cached no
    more.
    """

    def __init__(self, age_limit_s: float) -> None:
        self._age_limit_s = age_limit_s
        self._waiting = Earliest()
        self._to_pass = 0  # units of other work before it is the turn of the oldest
        self._due: QueueEntry | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entry: QueueEntry) -> None:
        """Add an entry, which waits from its arrival on."""
        self._waiting.add(entry, entry.arrival_s)

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry that no longer waits."""
        self._waiting.remove(entry)

    def note_taken(self, entry: QueueEntry, num_items: int) -> None:
        """Note that the next items of an entry are taken now."""
        units = entry.units_of(entry.lo, entry.lo + num_items)
        self._to_pass = (EVERY - 1) * units if entry is self._due else max(0, self._to_pass - units)
        self._due = None

    def due(self, now_s: float) -> QueueEntry | None:
        """Return the entry that must be taken next, whatever the order prefers; None if there is none."""
        is_due = not self._to_pass and self.is_overdue(now_s)
        self._due = self._waiting.first if is_due else None
        return self._due

    def is_overdue(self, now_s: float) -> bool:
        """Return whether an entry has waited beyond the age limit."""
        return bool(self._waiting) and self._waiting.first_s < now_s - self._age_limit_s
