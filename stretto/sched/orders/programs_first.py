"""The order `programs_first`: serve the program that is expected to end after the least work.

A person waits for a program: a question with its retrievals, or the session of an agent. So programs are
sorted, not requests. The key of a program is made of

- its index: the work that waits here, as the graph says, and the work that programs of its kind have asked
  for later, after as much work (`costs/learned_work.py`). Where nothing is known of the kind, it is the work
  that the program has asked for, so that the least attained service goes first;
- and the time for which its oldest request has waited here, as a factor (`ageing.py`). Time that a program
  spends in tools, or at other engines, does not count: an agent would overtake all chats after a while.

Where all instances report what their caches hold, the program that would go next is priced anew by what is
held of its prompt now, and goes only if it is the first with that price too.

All programs age alike, so the order of the keys does not depend on the time. Within a program the longest way
to its end goes first. What has waited beyond the age limit has a share of what is taken (`Overdue`), and so
has what must start now to keep its deadline (`NearDeadlines`). When that is, is learned from how programs of
the kind went on from such work to their end. What cannot keep its deadline any more goes by its work.

Tenants share an engine by the service that they get, in virtual time. A tenant that is ahead of the one
furthest behind of those that wait by more than `LEAD_S` seconds of service waits until the others have caught
up, or have nothing that could go. So a burst delays its own tenant, and as long as tenants keep within that
lead of each other, the keys decide alone.

Source: index: Gittins 1979; virtual time: Goyal, Vin and Cheng, "Start-time Fair Queueing" (1996). Differs: a
tenant may be ahead by a lead, so that short programs of all tenants can go first.
"""

from __future__ import annotations

import math

from stretto.sched.orders.ageing import AgeingClock, aged_key
from stretto.sched.orders.by_query import ByQuery, PlaceKey
from stretto.sched.orders.by_way import ByWay
from stretto.sched.orders.near_deadlines import NearDeadlines
from stretto.sched.orders.order import MAX_ASKED, Fits, Hold, OrderConfig, Rank, Take
from stretto.sched.orders.tenant_shares import TenantShares
from stretto.sched.queries.request import ProgramKey, QueueEntry

_MOST_CORRECTED = 16
"""Most programs that are priced anew for one choice."""


class ProgramsFirst:
    """A queue order that serves the program with the least work expected until it
    ends, and shares the engine among tenants. A program is a query, or several that name one program.
    """

    takes_all = True

    def __init__(self, config: OrderConfig) -> None:
        self._config = config
        self._tenants: dict[str, _Tenant] = {}
        self._shares = TenantShares[_Tenant](config.account)

    def add(self, entry: QueueEntry) -> None:
        """Add an entry to the waiting work of its program and tenant."""
        name = entry.request.record.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            account = self._config.account
            is_offline = entry.sorted_as.criteria == "offline"
            clock = account.offline_ageing if is_offline else account.ageing
            tenant = self._tenants[name] = _Tenant(name, self._config, clock)
            for one in self._tenants.values() if len(self._tenants) == 2 else ():
                self._shares.note(one)  # nothing was noted while there was but one
        tenant.add(entry)
        if len(self._tenants) > 1:
            self._shares.note(tenant)

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry whose waiting items are no longer wanted."""
        tenant = self._tenants[entry.request.record.tenant]
        tenant.remove(entry)
        self._settle(tenant)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose which entry goes next, and how many of its items; None if none may go."""
        if len(self._tenants) == 1:
            return next(iter(self._tenants.values())).take(to_fill, fits, now_s)
        num_asked = 0

        def few(entry: QueueEntry) -> int:
            nonlocal num_asked
            num_asked += 1
            return fits(entry) if num_asked <= MAX_ASKED else 0

        for tenant in self._shares.in_turn(now_s):
            chosen = tenant.take(to_fill, few, now_s)
            self._shares.note(tenant)  # its first programs may have been priced anew
            if chosen is not None or num_asked >= MAX_ASKED:
                return chosen
        return None

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count the next `num_items` items of an entry as no longer waiting."""
        tenant = self._tenants[entry.request.record.tenant]
        tenant.taken(entry, num_items)
        if len(self._tenants) > 1:
            self._shares.note(tenant)

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry, which were taken, run now or were given up."""
        tenant = self._tenants[entry.request.record.tenant]
        tenant.started(entry, lo, hi)
        self._settle(tenant)

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry that has not started; the smaller goes first."""
        return self._tenants[entry.request.record.tenant].rank(entry)

    def check_invariants(self) -> None:
        """Check that each tenant has work here, and stands in one place. For tests."""
        assert not any(tenant.is_empty for tenant in self._tenants.values())
        self._shares.check_invariants()

    def _settle(self, tenant: _Tenant) -> None:
        if tenant.is_empty:
            self._shares.drop(tenant)
            del self._tenants[tenant.name]
        elif len(self._tenants) > 1:
            self._shares.note(tenant)


class _Tenant(ByQuery):
    """The waiting work of one tenant, by program."""

    def __init__(self, name: str, config: OrderConfig, clock: AgeingClock) -> None:
        super().__init__(lambda: _Program(config, clock), config.age_limit_s, _name)
        self.name = name
        self._config = config
        self._clock = clock
        self._deadlines: NearDeadlines | None = None  # until an entry has to start by a time

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, and all that was taken has started."""
        return not self._queries

    def best(self) -> PlaceKey | None:
        """Return the key of the best program; None if nothing waits."""
        if self._moved:
            self._put_moved()
        return self._by_key.first_key if self._by_key else None

    def has_overdue(self, now_s: float) -> bool:
        """Return whether something has waited beyond the age limit."""
        return self._waiting.is_overdue(now_s)

    def add(self, entry: QueueEntry) -> None:
        """Add an entry to the waiting work of its program."""
        super().add(entry)
        start_by_s = entry.sorted_as.start_by_s
        if entry.request.record.deadline_s is not None:
            start_by_s = min(start_by_s, self._config.account.start_by_s(entry.request))
        if start_by_s < math.inf:
            if self._deadlines is None:
                self._deadlines = NearDeadlines()
            self._deadlines.add(entry, start_by_s)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose which entry of the tenant goes next; None if none may go."""
        account = self._config.account
        self._clock.advance(now_s, are_mixed=account.are_mixed)
        if self._deadlines is not None:
            urgent = self._deadlines.due(now_s)
            if urgent is not None and (num_items := fits(urgent)):
                return Take(urgent, num_items)
        if account.num_held is not None:
            self._correct_first()
        return super().take(to_fill, fits, now_s)

    def _correct_first(self) -> None:
        """Price the program that would go next by what caches hold now, until that changes nothing."""
        if self._moved:
            self._put_moved()
        for _ in range(_MOST_CORRECTED if self._keys else 0):
            name = self._by_key.first
            program = self._queries[name]
            if not isinstance(program, _Program) or not program.correct_first():
                return
            self._put(name)

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count the next items of an entry as no longer waiting."""
        if self._deadlines is not None:
            self._deadlines.note_taken(entry)
        super().taken(entry, num_items)

    def _leave(self, entry: QueueEntry, num_items: int) -> None:
        super()._leave(entry, num_items)
        if entry.lo == entry.hi:
            self._clock.remove(entry.arrival_s)
            if self._deadlines is not None:
                self._deadlines.discard(entry)


class _Program(ByWay):
    """One program's work; what is expected to be cached of its prompts costs nothing."""

    def __init__(self, config: OrderConfig, clock: AgeingClock) -> None:
        super().__init__(config.output_s)
        self._config = config
        self._clock = clock
        self._name: ProgramKey = ""

    def add(self, entry: QueueEntry) -> None:
        self._name = entry.sorted_under
        aged = self._clock.add(entry.arrival_s)
        before_s = self.seconds
        self.put(entry, self._config.unit_s * entry.fresh, aged)
        self._clock.expect(self.seconds - before_s)

    def correct_first(self) -> bool:
        """Price the entry that would go next by what caches hold of its prompt now; return whether that has
        changed its price.
        """
        entry = self.first()
        fresh = self._config.account.corrected(entry.request)
        if fresh is not None:
            entry.fresh = fresh
            self.reprice(entry, self._config.unit_s * fresh)
        return fresh is not None

    def key_s(self) -> float:
        config = self._config
        return aged_key(config.account.index_s(self._name, self.seconds), self.unstarted.first_s)


def _name(entry: QueueEntry) -> ProgramKey:
    """Return the name that an entry is sorted under: its program, or in a session the job."""
    return entry.job if entry.sorted_as.job else entry.request.program_key
