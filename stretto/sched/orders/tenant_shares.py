"""Which tenants' turn it is at one queue, so that each gets its share of the engine.

Tenants are compared by their virtual time, the service that they got over their weight
(`tenants_served.py`). A tenant that is ahead of the one furthest behind by more than `LEAD_S` goes only when
nothing of the others could.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Generic, Protocol, TypeVar

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.orders.order import MAX_ASKED
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.orders.tenants_served import LEAD_S


class SharingTenant(Protocol):
    """The interface of a tenant's waiting work at one queue.

    Attributes:
        name: name of the tenant.
    """

    name: str

    def best(self) -> tuple[float, ...] | None:
        """Return the sort key of its best work; None if nothing waits."""
        ...

    def has_overdue(self, now_s: float) -> bool:
        """Return whether some of its work has waited beyond the age limit."""
        ...


T = TypeVar("T", bound=SharingTenant)


class TenantShares(Generic[T]):
    """The tenants with work at one queue, by whose turn it is. All operations take O(log n)."""

    def __init__(self, account: ProgramAccount) -> None:
        self._account = account
        self._floor_s = 0.0
        self._touched: dict[str, T] = {}
        self._served_s: dict[str, float] = {}  # of those that wait, as they are sorted
        self._keys: dict[str, tuple[float, ...]] = {}  # of those whose turn it is
        self._waiting = SortedQueue[T]()
        self._ready = SortedQueue[T]()
        self._ahead = SortedQueue[T]()

    def note(self, tenant: T) -> None:
        """Note that a tenant has come, or that its work has changed."""
        self._touched[tenant.name] = tenant

    def drop(self, tenant: T) -> None:
        """Forget a tenant that has no work here any more."""
        self._touched.pop(tenant.name, None)
        self._take_out(tenant.name)

    def in_turn(self, now_s: float) -> Iterator[T]:
        """Yield the tenants with waiting work, best first: those whose turn it is by their keys, then the
        others, unless something is overdue that goes before them. Nothing may change meanwhile.
        """
        self._settle()
        while self._ready and not self._is_current(self._ready.first):
            self.note(self._ready.first)
            self._settle()
        yield from islice(self._ready, MAX_ASKED)
        if not any(tenant.has_overdue(now_s) for tenant in islice(self._ready, MAX_ASKED)):
            yield from islice(self._ahead, MAX_ASKED)

    def check_invariants(self) -> None:
        """Check that each tenant that waits stands in one place. For tests."""
        names = [tenant.name for tenant in chain(self._ready, self._ahead)]
        assert sorted(names) == sorted(self._served_s) == sorted(tenant.name for tenant in self._waiting)
        assert sorted(self._keys) == sorted(tenant.name for tenant in self._ready)

    def _settle(self) -> None:
        """Put the tenants that have changed in their places, and those whose turn has come."""
        for name, tenant in self._touched.items():
            was_waiting = self._take_out(name)
            key = tenant.best()
            if key is None:
                continue
            if not was_waiting:
                self._account.tenants.come(name)
            served_s = self._served_s[name] = self._account.tenants.served_s(name)
            self._waiting.add((served_s, name), tenant)
            self._keys[name] = key
            self._ready.add((key, name), tenant)
        self._floor_s = self._waiting.first_key[0] if self._waiting else self._account.virtual_s
        for name, tenant in self._touched.items():
            if name in self._keys and self._served_s[name] > self._floor_s + LEAD_S:
                self._ready.remove((self._keys.pop(name), name))
                self._ahead.add((self._served_s[name], name), tenant)
        self._touched.clear()
        while self._ahead and self._ahead.first_key[0] <= self._floor_s + LEAD_S:
            tenant = self._ahead.first
            self._ahead.remove(self._ahead.first_key)
            key = tenant.best()
            assert key is not None
            self._keys[tenant.name] = key
            self._ready.add((key, tenant.name), tenant)

    def _is_current(self, tenant: T) -> bool:
        served_s = self._account.tenants.served_s(tenant.name)
        return self._served_s[tenant.name] == served_s and self._keys[tenant.name] == tenant.best()

    def _take_out(self, name: str) -> bool:
        """Take a tenant out of its places; return whether it was waiting."""
        served_s = self._served_s.pop(name, None)
        if served_s is None:
            return False
        self._waiting.remove((served_s, name))
        key = self._keys.pop(name, None)
        if key is None:
            self._ahead.remove((served_s, name))
        else:
            self._ready.remove((key, name))
        return True
