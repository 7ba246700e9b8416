"""What a request would push out of an instance's cache, as placement policies price it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_hashes import HASH_BYTES
from stretto.cluster.prefix_index import PrefixIndex
from stretto.model.record import record

_MAX_VICTIMS = 8


@record
class Victim:
    """A part of a prefix that would be evicted.

    Attributes:
        num_tokens: number of its tokens.
        uses: number of requests that used it lately.
        num_holders: number of instances that hold it.
    """

    num_tokens: int
    uses: float
    num_holders: int


def victims(
    index: PrefixIndex,
    request: PlacementRequest,
    view: InstanceView,
    held_tokens: int,
    now_s: float,
    *,
    used_more_than: float = -1.0,
) -> Iterator[Victim]:
    """Yield what an instance would evict to compute a request, the oldest first, at most 8 parts.

    Nothing is known of an instance whose capacity is unknown.

    Args:
        used_more_than: uses at the last use; parts with fewer, or as many, are left out.
    """
    cache, key = index.caches.get(view.id), request.keys.get(view.space)
    if cache is None or key is None:
        return
    num_new = (request.num_tokens - held_tokens) // key.block_tokens
    excess = cache.num_blocks + num_new - cache.capacity
    tree = index.trees.get(view.space) if excess > 0 else None
    if tree is None:
        return
    size = key.block_tokens
    for run in islice(cache.used, _MAX_VICTIMS):
        num_blocks = len(run.blocks) // HASH_BYTES
        if run.uses > used_more_than:
            evicted = min(num_blocks, math.ceil(excess))
            uses, num_holders = run.recent_uses(now_s, tree.rate_s), run.holders.bit_count()
            yield Victim(evicted * size, uses, num_holders)
        excess -= num_blocks
        if excess <= 0:
            return
