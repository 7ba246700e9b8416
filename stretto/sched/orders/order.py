"""The interface of an order of service, which decides which request in a queue goes next.

An entry is *waiting* until all of its items are taken, and *unstarted* until all of them have begun to run:
in between they are in the queue of an instance. Ranks and prices of a query count what is unstarted, so that
they do not change while a batch is being filled, nor when a request merely changes queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeAlias

from stretto.costs.profile import Profile
from stretto.deployment import Engine
from stretto.record import record
from stretto.sched.request import Entry

MAX_ASKED = 32
"""Largest number of entries that `take` may ask `fits` about."""

Rank: TypeAlias = tuple[float, ...]
"""Place of a request among those that wait at an instance: the smaller goes first."""

Fits: TypeAlias = Callable[[Entry], int]
"""A function that says how many items of an entry, from its `lo` on, can be taken now."""


@record
class Take:
    """Decision: take `num_items` of an entry; with `ends_batch` nothing else goes into the same batch."""

    entry: Entry
    num_items: int
    ends_batch: bool = False


@record
class Hold:
    """Decision: take nothing before `until_s`, though there is room, as more may come until then."""

    until_s: float


@dataclass(frozen=True, slots=True)
class OrderConfig:
    """The numbers that orders may use.

    Attributes:
        age_limit_s: seconds after which a waiting entry goes first, the oldest first (`topology_aware`,
            `critical_path`, `least_work`).
        fill_timeout_s: seconds that `throughput` waits for a batch to fill.
        unit_s: predicted seconds of a unit of work on the engine (`least_work`).
        output_s: predicted seconds of a generated token (`least_work`).
    """

    age_limit_s: float = 10.0
    fill_timeout_s: float = 0.005
    unit_s: float = 0.0
    output_s: float = 0.0

    @classmethod
    def of(cls, engine: Engine, profile: Profile) -> OrderConfig:
        """Return the numbers for an engine with replicas of about this profile.

        A generated token is priced at its share of a step of a full batch.
        """
        output_s = profile.decode_s(engine.max_running) / engine.max_running
        return cls(engine.age_limit_s, engine.fill_timeout_s, profile.per_unit_s, output_s)


class Order(Protocol):
    """The interface of the order of one queue. No operation costs more than O(log n) of what waits.

    An order that never holds back or divides what fits into one batch says so by `takes_all = True`, and is
    then spared all that fits.
    """

    def add(self, entry: Entry) -> None:
        """Add an entry that waits."""
        ...

    def remove(self, entry: Entry) -> None:
        """Remove all waiting items of an entry, which are no longer wanted."""
        ...

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose what goes next; return None if nothing may. Changes nothing.

        `fits` is asked at most `MAX_ASKED` times. An entry older than the age limit is never skipped: if
        it does not fit, nothing goes.

        Args:
            to_fill: units that an order which waits for full batches waits for; 0 once a batch has begun.
        """
        ...

    def taken(self, entry: Entry, num_items: int) -> None:
        """Note that items of a waiting entry, from its `lo` on, have been taken. Moves `lo` up."""
        ...

    def started(self, entry: Entry, lo: int, hi: int) -> None:
        """Note that items taken earlier, `lo` to `hi`, have begun to run or were given up."""
        ...

    def rank(self, entry: Entry) -> Rank:
        """Return the present rank of an unstarted entry among all."""
        ...


NewOrder: TypeAlias = Callable[[OrderConfig], Order]
"""A policy: a function that makes the order of one queue."""


def first_that_fits(entries: Iterable[Entry], fits: Fits) -> Take | None:
    """Take the first of at most `MAX_ASKED` entries of which an item fits; None if there is none."""
    for entry in islice(entries, MAX_ASKED):
        if num_items := fits(entry):
            return Take(entry, num_items)
    return None
