"""How fast the prefix caches of instances are renewed, so that policies can spread new prompts over them.

The fastest renewal keeps prefixes for the shortest time. Instances that keep them equally long evict together
what one cache for all of them would evict: what was used least recently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.cluster.prefix_index import PrefixIndex

_FULL = 0.95
"""Share of its capacity from which a cache counts as full."""
_LEAST_AGE_S = 0.001


def renewal_speeds(
    index: PrefixIndex, instances: Sequence[InstanceView], now_s: float
) -> Mapping[InstanceId, float]:
    """Return how fast each cache is renewed: one over the seconds for which it keeps what is not used.

    Nothing is returned while one of them is not full, or its size is unknown.
    """
    speeds: dict[InstanceId, float] = {}
    caches = index.caches
    for view in instances:
        cache = caches.get(view.id)
        if cache is None or not cache.num_blocks or cache.num_blocks < _FULL * cache.capacity:
            return {}
        if not 0 < index.members[view.id].cache_tokens < math.inf:
            return {}
        age_s = now_s - cache.since_s
        speeds[view.id] = 1.0 / (age_s if age_s > _LEAST_AGE_S else _LEAST_AGE_S)
    return speeds
