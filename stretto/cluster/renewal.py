"""How fast the prefix caches of instances are renewed, so that policies can spread new prompts over them.

The fastest renewal keeps prefixes for the shortest time. Instances that keep them equally long evict together
what one cache for all of them would evict: what was used least recently.
"""

from __future__ import annotations

import math

from stretto.cluster.messages import InstanceId
from stretto.cluster.prefix_index import PrefixIndex

_FULL = 0.95
"""Share of its capacity from which a cache counts as full."""
_LEAST_AGE_S = 0.001


def renewal_speed(index: PrefixIndex, instance: InstanceId, now_s: float) -> float:
    """Return one over the seconds for which a cache keeps what is not used; 0 while it is not full, or if its
    size is unknown.
    """
    cache = index.caches.get(instance)
    if cache is None or cache.num_blocks < _FULL * cache.capacity or not index.knows_size(instance):
        return 0.0
    age_s = now_s - next(iter(cache.used.values()), -math.inf)
    return 1.0 / (age_s if age_s > _LEAST_AGE_S else _LEAST_AGE_S)
