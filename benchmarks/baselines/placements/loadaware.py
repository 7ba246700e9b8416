"""The placement policy `loadaware`: the held share of the prompt, less the relative load.

Source: the vLLM production stack: matched / prompt - beta * relative load, with beta 1; the relative load is
the number of requests over the largest such number of an instance.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.scored_placement import ScoredPlacement, num_requests

_BETA = 1.0


class LoadAware(ScoredPlacement):
    """A placement policy that weighs the share of the prompt that an instance lacks against the share that
    its requests are of those of the busiest instance.
    """

    names = ("missing_share", "relative_load")

    def prepare(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> None:
        """Find the largest number of requests."""
        self._most = max(1, *map(num_requests, options))

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the share of the prompt that is missing, and the weighted relative load."""
        missing = 1.0 - held_tokens / max(1, request.num_tokens)
        return missing, _BETA * num_requests(view) / self._most
