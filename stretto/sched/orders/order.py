"""The interface of an order of service, which decides which request in a queue goes next.

An entry is the queued work of one step, as a number of items. It is *waiting* until all of its items are
taken, and *unstarted* until all of them have begun to run: in between they are in the queue of an instance.
Ranks and prices of a query count what is unstarted, so that they do not change while a batch is being filled,
nor when a request merely changes queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeAlias

from stretto.model.profile import Profile
from stretto.model.record import record
from stretto.model.replica import Engine
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.request import QueueEntry

MAX_ASKED = 32
"""Largest number of entries that `take` may ask `fits` about."""

_AGEING = 0.3
_LLM_AGEING = 0.1

Rank: TypeAlias = tuple[float, ...]
"""Place of a request among those that wait at an instance: the smaller goes first."""

Fits: TypeAlias = Callable[[QueueEntry], int]
"""A function that says how many items of an entry, from its `lo` on, can be taken now."""


@record
class Take:
    """A queue order's decision to run something now: the next `num_items` items of an entry.

    With `ends_batch` nothing else goes into the same batch.
    """

    entry: QueueEntry
    num_items: int
    ends_batch: bool = False


@record
class Hold:
    """A queue order's decision to run nothing before the time `until_s`, though there is room, because more
    work may come until then and fill the batch.
    """

    until_s: float


@dataclass(frozen=True, slots=True)
class OrderConfig:
    """The settings and predicted costs by which queue orders decide.

    Attributes:
        age_limit_s: seconds after which the oldest waiting entry has a share of what is taken
            (all but `per_invocation` and `throughput`).
        fill_timeout_s: seconds that `throughput` waits for a batch to fill.
        unit_s: predicted seconds of a unit of work on the engine (`least_work`, `programs_first`).
        output_s: predicted seconds of a generated token (`least_work`, `programs_first`).
        ageing: seconds of work that a second of waiting counts as (`least_work`).
        account: what programs have asked of the engine, and the service that tenants got
            (`programs_first`). The scheduler of the engine keeps it.
    """

    age_limit_s: float = 10.0
    fill_timeout_s: float = 0.005
    unit_s: float = 0.0
    output_s: float = 0.0
    ageing: float = _AGEING
    account: ProgramAccount = field(default_factory=ProgramAccount)

    @classmethod
    def of(cls, engine: Engine, profile: Profile, account: ProgramAccount | None = None) -> OrderConfig:
        """Return the settings by which an engine's queue is sorted, with costs from `profile`, a cost profile
        that fits all of its replicas roughly.

        A generated token is priced at its share of a step of a full batch.
        """
        unit_s, output_s = prices_s(engine, profile)
        ageing = _LLM_AGEING if engine.is_llm else _AGEING
        account = ProgramAccount(unit_s, output_s) if account is None else account
        return cls(engine.age_limit_s, engine.fill_timeout_s, unit_s, output_s, ageing, account=account)


def prices_s(engine: Engine, profile: Profile) -> tuple[float, float]:
    """Return the predicted seconds of a unit of work at an engine, and of a generated token: its share of a
    step of a full batch.
    """
    return profile.per_unit_s, profile.decode_s(engine.max_running) / engine.max_running


class Order(Protocol):
    """The interface of a queue order, the rule that decides what goes next among the entries of one queue.

    An entry is the queued work of one step, as a number of items. No operation costs more than O(log n) of
    what waits. An order has `takes_all = True` if it never waits for more work and never divides what fits
    into one batch; then it is not asked while all that waits fits.
    """

    def add(self, entry: QueueEntry) -> None:
        """Add an entry to those that this queue order sorts. It waits from now on."""
        ...

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry whose waiting items are no longer wanted."""
        ...

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose which entry goes next, and how many of its items; None if none may go now.

        The entry stays in the queue until `taken` is called. `fits` says how many items of an entry there is
        room for, and is asked at most `MAX_ASKED` times. In its turn (`Overdue`), an entry older than the age
        limit is not skipped: if it does not fit, nothing goes.

        Args:
            to_fill: units of work of a full batch, for orders that wait for one; 0 once a batch has begun.
        """
        ...

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count the next `num_items` items of an entry as no longer waiting.

        The entry's `lo`, the index of its next waiting item, moves up.
        """
        ...

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry, which were taken, run now or were given up.

        Until then they still count as work that its query has to do.
        """
        ...

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry that has not started; the smaller goes
        first. An instance that queues it too sorts by the same key.
        """
        ...


NewOrder: TypeAlias = Callable[[OrderConfig], Order]
"""A policy: a function that makes the order of one queue."""


def first_that_fits(entries: Iterable[QueueEntry], fits: Fits) -> Take | None:
    """Return the decision to run the first of `entries` (each one step's queued work) of which at least one
    item fits; None if none fits.

    At most `MAX_ASKED` entries are tried.
    """
    for entry in islice(entries, MAX_ASKED):
        if num_items := fits(entry):
            return Take(entry, num_items)
    return None
