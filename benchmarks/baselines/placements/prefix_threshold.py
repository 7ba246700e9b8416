"""The placement policy `prefix_threshold`: the instance that holds most of the prompt, if that is a large
enough share, unless the load is imbalanced.

Source: `cache_aware` of the SGLang router, with its defaults: a share of 0.3 is large enough; the load is
imbalanced if the busiest instance has more than 64 requests more and 1.5 times as many as the idlest.
Differs: a prompt of which too little is held goes to the instance with the fewest requests, not to the one
with the smallest tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.scored_placement import ScoredPlacement, num_requests

_LEAST_SHARE = 0.3
_IMBALANCE = 64
_IMBALANCE_RATIO = 1.5


class PrefixThreshold(ScoredPlacement):
    """A placement policy that follows the longest prefix while the load is balanced, and otherwise chooses
    the instance with the fewest requests.
    """

    names = ("requests",)

    def best(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> Choice:
        """Return the instance with the longest prefix, or the one with the fewest requests."""
        loads = [num_requests(view) for view in options]
        most, least = max(loads), min(loads)
        if most - least <= _IMBALANCE or most <= _IMBALANCE_RATIO * least:
            longest = max(map(held.of, options))
            if longest > _LEAST_SHARE * request.num_tokens:
                options = [view for view in options if held.of(view) == longest]
        return super().best(request, options, held, now_s)

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the number of requests."""
        return (num_requests(view),)
