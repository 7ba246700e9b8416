"""How fast the prefix caches of instances are renewed, so that policies can spread new prompts over them.

The fastest renewal keeps prefixes for the shortest time. Instances that keep them equally long evict together
what one cache for all of them would evict: what was used least recently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Emptied, Joined, Left
from stretto.cluster.prefix_index import PrefixIndex

_FULL = 0.95
"""Share of its capacity from which a cache counts as full."""
_LEAST_AGE_S = 0.001


@dataclass(slots=True)
class _Filling:
    """The filling of a cache with new tokens, again and again.

    Attributes:
        capacity_tokens: tokens of one filling.
        num_tokens: tokens of the filling that goes on.
        begun_s: time at which it began; None before the first tokens.
        before_s: seconds of the filling before it; infinite if there was none.
    """

    capacity_tokens: int
    num_tokens: int = 0
    begun_s: float | None = None
    before_s: float = math.inf

    def add(self, num_tokens: int, now_s: float) -> None:
        if self.begun_s is None:
            self.begun_s = now_s
        self.num_tokens += num_tokens
        if self.num_tokens >= self.capacity_tokens:
            self.before_s = now_s - self.begun_s
            self.num_tokens, self.begun_s = 0, now_s

    def age_s(self, now_s: float) -> float:
        """Return the seconds in which the last `capacity_tokens` tokens have come."""
        if self.begun_s is None:
            return math.inf
        return now_s - self.begun_s + (1.0 - self.num_tokens / self.capacity_tokens) * self.before_s


class Renewal:
    """The speed at which each instance renews what its cache holds.

    Where an instance reports nothing, the index knows when the oldest prefix there was used last. Where it
    reports its cache, this is estimated from the tokens that were computed there.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._fillings: dict[InstanceId, _Filling] = {}

    def observe(self, event: Joined | Emptied | Left) -> None:
        """Update the instances after an event."""
        match event:
            case Joined(instance, _, cache_tokens) if cache_tokens:
                self._fillings[instance] = _Filling(cache_tokens)
            case Emptied(instance) if filling := self._fillings.get(instance):
                self._fillings[instance] = _Filling(filling.capacity_tokens)
            case Left(instance):
                self._fillings.pop(instance, None)

    def add(self, instance: InstanceId, num_tokens: int, now_s: float) -> None:
        """Note that an instance computes so many tokens of a prompt. It counts where caches are reported."""
        filling = self._fillings.get(instance)
        if filling is not None and self._index.has_reports(instance):
            filling.add(num_tokens, now_s)

    def speed(self, instance: InstanceId, now_s: float) -> float:
        """Return one over the seconds for which a cache keeps what is not used; 0 while it is not full."""
        cache, filling = self._index.caches.get(instance), self._fillings.get(instance)
        if filling is None or cache is None:
            return 0.0
        if self._index.has_reports(instance):
            age_s = filling.age_s(now_s)
        elif cache.num_blocks < _FULL * cache.capacity:
            return 0.0
        else:
            age_s = now_s - next(iter(cache.used.values()), -math.inf)
        return 1.0 / (age_s if age_s > _LEAST_AGE_S else _LEAST_AGE_S)
