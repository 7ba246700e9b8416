"""Orders of service that only the judge has: by attained service, and by what is truly left.

Both serve programs, not queries, and within a program the longest way first. They look at all that waits,
which is short enough here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nsmallest
from typing import TypeAlias

from stretto.sched.orders.order import (
    MAX_ASKED,
    Fits,
    Hold,
    NewOrder,
    OrderConfig,
    Rank,
    Take,
    first_that_fits,
)
from stretto.sched.queries.request import QueueEntry

CallKey: TypeAlias = tuple[str, str, int]
"""A call of an LLM: its query, its step and its item."""
KeyOf: TypeAlias = Callable[[QueueEntry], float]
NoteStart: TypeAlias = Callable[[QueueEntry, int, int, OrderConfig], None]

_AGEING = 0.02


class ByProgramKey:
    """An order by a number of each entry's program, the smallest first.

    Args:
        key_of: function that gives the number, which may change whenever something starts.
        started: function that is called with the items of an entry that start.
    """

    takes_all = True

    def __init__(self, config: OrderConfig, key_of: KeyOf, started: NoteStart) -> None:
        self._config = config
        self._key_of = key_of
        self._started = started
        self._waiting: dict[QueueEntry, None] = {}

    def add(self, entry: QueueEntry) -> None:
        """Add an entry."""
        self._waiting[entry] = None

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry that is no longer wanted."""
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose the first entry that fits."""
        if not self._waiting:
            return None
        first = min(self._waiting, key=self._key)
        if num_items := fits(first):
            return Take(first, num_items)
        return first_that_fits(nsmallest(MAX_ASKED, self._waiting, self._key)[1:], fits)

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count items as no longer waiting."""
        entry.lo += num_items
        if entry.lo == entry.hi:
            del self._waiting[entry]

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Note that items have started."""
        if entry.request.prompts:
            self._started(entry, lo, hi, self._config)

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the place of an entry."""
        return self._key(entry)[:2]

    def _key(self, entry: QueueEntry) -> tuple[float, float, int]:
        return self._key_of(entry), -entry.path_s, entry.number


def least_attained() -> NewOrder:
    """Return an order that serves the program with the least work done so far, as predicted when it started,
    with a little ageing. It is for the queues of one run.
    """
    attained_s: dict[str, float] = {}

    def key_of(entry: QueueEntry) -> float:
        return attained_s.get(entry.program, 0.0) + _AGEING * entry.arrival_s

    def started(entry: QueueEntry, lo: int, hi: int, config: OrderConfig) -> None:
        seconds = config.unit_s * entry.num_units(lo, hi) + config.output_s * entry.num_output * (hi - lo)
        attained_s[entry.program] = attained_s.get(entry.program, 0.0) + seconds

    return lambda config: ByProgramKey(config, key_of, started)


def least_left(work_s: Mapping[CallKey, float], programs: Mapping[str, str]) -> NewOrder:
    """Return an order that serves the program with the least true work left. It is for the queues of one run.

    Args:
        work_s: seconds of work of each call, as long as it is.
        programs: program of each query.
    """
    left_s: dict[str, float] = {}
    for (query, _, _), seconds in work_s.items():
        left_s[programs[query]] = left_s.get(programs[query], 0.0) + seconds

    def key_of(entry: QueueEntry) -> float:
        return left_s[entry.program]

    def started(entry: QueueEntry, lo: int, hi: int, _: OrderConfig) -> None:
        for item in range(lo, hi):
            left_s[entry.program] -= work_s[entry.query, entry.request.step, item]

    return lambda config: ByProgramKey(config, key_of, started)
