"""The service that the tenants of an engine got, in virtual time: seconds of work over a tenant's weight.

A tenant that comes back after it had nothing waiting begins at most `LEAD_S` behind the one furthest ahead of
those that were served. So idle time gives little credit, and what a tenant is behind is not lost where its
few requests all run for a moment, or wait in another queue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from stretto.model.errors import ConfigError

NO_WEIGHTS: Mapping[str, float] = MappingProxyType({})
"""Weights by which all tenants have equal shares."""

LEAD_S = 4.0
"""Seconds of service, over its weight, by which a tenant may be ahead of the one that is furthest behind."""
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
        self._front_s = 0.0  # the latest virtual time at which a tenant was served
        self._forgotten_s = 0.0  # virtual time at least of tenants that are not in `_served`

    def served_s(self, tenant: str) -> float:
        """Return the virtual time of a tenant."""
        return self._served.get(tenant, self._forgotten_s)

    def weight(self, tenant: str) -> float:
        """Return the share of a tenant relative to others."""
        return self._weights.get(tenant, 1.0)

    def come(self, tenant: str) -> None:
        """Note that a tenant that had nothing waiting in a queue has something there."""
        if self.served_s(tenant) < self._front_s - LEAD_S:
            self._served[tenant] = self._front_s - LEAD_S

    def charge(self, tenant: str, seconds: float) -> float:
        """Add service to that of a tenant; return its virtual time before that."""
        served = self._served
        before_s = served.get(tenant, self._forgotten_s)
        if before_s > self._front_s:
            self._front_s = before_s
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
