"""What a request would push out of an instance's cache, as placement policies price it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from stretto.cluster.instances import InstanceView
from stretto.cluster.placement import PlacementRequest
from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.prefix_tree import PrefixTree, Run
from stretto.record import record

_MAX_VICTIMS = 8


@record
class Victim:
    """A part of a prefix that would be evicted.

    Attributes:
        num_tokens: number of its tokens.
        num_before: number of tokens before it.
        uses: number of requests that used it lately.
        num_holders: number of instances that hold it.
    """

    num_tokens: int
    num_before: int
    uses: float
    num_holders: int


def victims(
    index: PrefixIndex, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
) -> Iterable[Victim]:
    """Return what an instance would evict to compute a request, the oldest first, at most 8 parts.

    Nothing is known of an instance that reports its cache, or whose capacity is unknown.
    """
    cache, key = index.caches.get(view.id), request.keys.get(view.space)
    if cache is None or key is None:
        return ()
    num_new = (request.num_tokens - held_tokens) // key.block_tokens
    excess = cache.num_blocks + num_new - cache.capacity
    tree = index.tree(view.space) if excess > 0 else None
    if tree is None or index.has_reports(view.id):
        return ()
    return _oldest(tree, view, excess, key.block_tokens, now_s)


def _oldest(tree: PrefixTree, view: InstanceView, excess: float, size: int, now_s: float) -> Iterator[Victim]:
    for number, (run, _) in enumerate(tree.oldest(view.id)):
        if excess <= 0 or number == _MAX_VICTIMS:
            return
        num_blocks = min(run.num_blocks, math.ceil(excess))
        excess -= num_blocks
        yield _victim(run, num_blocks, size, tree.recent_uses(run, now_s))


def _victim(run: Run, num_blocks: int, size: int, uses: float) -> Victim:
    before = run.start + run.num_blocks - num_blocks
    return Victim(num_blocks * size, before * size, uses, run.holders.bit_count())
