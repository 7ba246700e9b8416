"""The placement policy `kv_cost`: the prefill to come and the KV blocks in use, in blocks.

Source: the KV router of NVIDIA Dynamo: max(active prefill + prompt - overlap, 0) + decode blocks, each with
weight 1. Differs: no random choice among near scores (temperature 0).
"""

from __future__ import annotations

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.scored_placement import ScoredPlacement

_BLOCK_TOKENS = 16


class KVCost(ScoredPlacement):
    """A placement policy that chooses the instance with the smallest sum of blocks to prefill and blocks that
    requests take there.
    """

    names = ("prefill_blocks", "decode_blocks")

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the blocks to prefill, with the request, and the blocks that requests take."""
        new_tokens = missing_tokens(view) + request.num_tokens - held_tokens
        taken_tokens = view.running_tokens + view.waiting_tokens
        return max(0.0, new_tokens) / _BLOCK_TOKENS, taken_tokens / _BLOCK_TOKENS


def missing_tokens(view: InstanceView) -> float:
    """Return the predicted number of tokens of the prefills that run or wait at an instance.

    The number is that of its seconds of prefills, by its cost profile.
    """
    per_token_s = view.profile.per_unit_s
    return (view.prefill_s + view.waiting_s) / per_token_s if per_token_s else 0.0
