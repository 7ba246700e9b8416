"""The placement policy `lmetric`: the product of the prefill to come and the number of requests.

Source: LMetric (arXiv 2603.15202), which has no parameter: new prefill tokens times batch size.
"""

from __future__ import annotations

from benchmarks.baselines.placements.kv_cost import missing_tokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.scored_placement import ScoredPlacement, num_requests


class LMetric(ScoredPlacement):
    """A placement policy that chooses the instance with the smallest product of the tokens that it has to
    prefill, with the request, and the number of its requests, with this one.
    """

    names = ("tokens_times_requests",)

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the product."""
        new_tokens = missing_tokens(view) + request.num_tokens - held_tokens
        return (new_tokens * (num_requests(view) + 1),)
