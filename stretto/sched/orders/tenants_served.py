"""The service that the tenants of an engine got, in virtual time: seconds of work over a tenant's weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from stretto.model.errors import ConfigError

NO_WEIGHTS: Mapping[str, float] = MappingProxyType({})
"""Weights by which all tenants have equal shares."""

_MAX_TENANTS = 4096


class TenantsServed:
    """The virtual times of the tenants of an engine.

    Args:
        weights: shares of tenants relative to each other; 1 where none is given.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        for tenant, weight in weights.items():
            if not 0 < weight < math.inf:
                raise ConfigError(
                    f"the weight of tenant {tenant!r} is {weight!r}; it must be positive and finite"
                )
        self._weights = weights
        self._served: dict[str, float] = {}
        self._owed_s: dict[str, float] = {}  # of those that have nothing waiting
        self._forgotten_s = 0.0  # virtual time at least of tenants that are not in `_served`

    def served_s(self, tenant: str) -> float:
        """Return the virtual time of a tenant."""
        return self._served.get(tenant, self._forgotten_s)

    def weight(self, tenant: str) -> float:
        """Return the share of a tenant relative to others."""
        return self._weights.get(tenant, 1.0)

    def lift(self, tenant: str, floor_s: float) -> None:
        """Let a tenant that had nothing waiting begin at `floor_s` at least, less what it was owed before:
        idle time gives no credit.
        """
        floor_s -= self._owed_s.pop(tenant, 0.0)
        if self.served_s(tenant) < floor_s:
            self._served[tenant] = floor_s

    def note_owed(self, tenant: str, behind_s: float) -> None:
        """Note by how much a tenant is behind the others when the last of its waiting work is taken."""
        if behind_s > 0:
            self._owed_s[tenant] = behind_s
            if len(self._owed_s) > _MAX_TENANTS:
                del self._owed_s[next(iter(self._owed_s))]

    def charge(self, tenant: str, seconds: float) -> float:
        """Add service to that of a tenant; return its virtual time before that."""
        served = self._served
        before_s = served.get(tenant, self._forgotten_s)
        served[tenant] = before_s + (seconds / self._weights.get(tenant, 1.0) if self._weights else seconds)
        if len(served) > _MAX_TENANTS:
            least = sorted(served, key=served.__getitem__)[: len(served) - _MAX_TENANTS // 2]
            self._forgotten_s = served[least[-1]]
            for one in least:
                del served[one]
        return before_s

    def check_invariants(self) -> None:
        """Check that the number of tenants keeps within its limit. For tests."""
        assert len(self._served) <= _MAX_TENANTS
        assert len(self._owed_s) <= _MAX_TENANTS
