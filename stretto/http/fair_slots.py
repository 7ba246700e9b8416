"""Slots that tenants share: each tenant finds one soon, whatever others have asked for.

Rules. A free slot goes to the waiting tenant with the fewest slots in use; among equals, to the one that got
a slot least recently. Requests of one tenant are served in order. The last free slots, the reserve, go only
to tenants that have none in use. So one tenant alone never takes all slots, and a newcomer finds one at once,
or gets the next one that becomes free.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count


class FairSlots:
    """The rule. It is a state machine: each method returns the requests that get a slot now.

    Args:
        num_slots: number of slots.
        reserve: number of slots that only tenants without one get.
    """

    def __init__(self, num_slots: int, reserve: int) -> None:
        self._num_slots = num_slots
        self._reserve = reserve
        self._waiting: dict[str, dict[int, None]] = {}
        """Requests that wait, by tenant; tenants that got a slot last come last."""
        self._tenants: dict[int, str] = {}
        self._in_use: Counter[str] = Counter()
        self._holders: set[int] = set()

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._tenants) - len(self._holders)

    def ask(self, request: int, tenant: str) -> list[int]:
        """Add a request of a tenant for a slot. Its number must be new."""
        self._tenants[request] = tenant
        self._waiting.setdefault(tenant, {})[request] = None
        return self._granted()

    def end(self, request: int) -> list[int]:
        """Remove a request, whether it holds a slot or still waits for one."""
        tenant = self._tenants.pop(request)
        if request in self._holders:
            self._holders.remove(request)
            self._in_use[tenant] -= 1
            if not self._in_use[tenant]:
                del self._in_use[tenant]
        else:
            del self._waiting[tenant][request]
            if not self._waiting[tenant]:
                del self._waiting[tenant]
        return self._granted()

    def check_invariants(self) -> None:
        """Check that slots are counted right, and that none is free that somebody may have."""
        assert len(self._holders) <= self._num_slots
        assert self._in_use == Counter(self._tenants[request] for request in self._holders)
        waiting = {request for requests in self._waiting.values() for request in requests}
        assert waiting | self._holders == self._tenants.keys()
        assert not waiting & self._holders
        assert all(self._waiting.values())
        assert not any(map(self._may_have, self._waiting))

    def _may_have(self, tenant: str) -> bool:
        """Return whether a tenant may have one slot more."""
        num_free = self._num_slots - len(self._holders)
        return num_free > (self._reserve if self._in_use[tenant] else 0)

    def _granted(self) -> list[int]:
        granted = []
        while self._waiting:
            tenant = min(self._waiting, key=self._in_use.__getitem__)
            if not self._may_have(tenant):
                break
            requests = self._waiting.pop(tenant)
            request = next(iter(requests))
            del requests[request]
            if requests:
                self._waiting[tenant] = requests
            self._holders.add(request)
            self._in_use[tenant] += 1
            granted.append(request)
        return granted


class FairTurns:
    """Slots that coroutines of tenants wait for. It belongs to one event loop.

    Args:
        num_slots: number of slots.
        is_shared: whether there are several tenants. Then a quarter of the slots, at least one of several, is
            a reserve for those that have none.
    """

    def __init__(self, num_slots: int, *, is_shared: bool) -> None:
        reserve = max(1, num_slots // 4) if is_shared and num_slots > 1 else 0
        self._slots = FairSlots(num_slots, reserve)
        self._numbers = count()
        self._futures: dict[int, asyncio.Future[None]] = {}

    @property
    def num_waiting(self) -> int:
        """Number of coroutines that wait for a slot."""
        return self._slots.num_waiting

    async def take(self, tenant: str) -> int:
        """Wait for a slot, and return its number, by which it must be given back."""
        number = next(self._numbers)
        granted = self._futures[number] = asyncio.get_running_loop().create_future()
        self._grant(self._slots.ask(number, tenant))
        try:
            await granted
        except BaseException:
            self.give_back(number)
            raise
        return number

    def give_back(self, number: int) -> None:
        """Give a slot back."""
        del self._futures[number]
        self._grant(self._slots.end(number))

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot within the block, which is entered when there is one."""
        number = await self.take(tenant)
        try:
            yield
        finally:
            self.give_back(number)

    def _grant(self, numbers: list[int]) -> None:
        for number in numbers:
            if not self._futures[number].done():  # else its coroutine is cancelled, and gives the slot back
                self._futures[number].set_result(None)
