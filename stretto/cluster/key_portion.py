"""The key portion of a prompt: the longest part of the prefix that instances hold of it.

Source: Preble §4.2, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Collection

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.index_members import HeldTokens
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_hashes import pack_hashes
from stretto.cluster.prefix_index import PrefixIndex
from stretto.model.record import record


@record
class KeyPortion:
    """The longest part of a prompt's held prefix.

    Attributes:
        last: hash of its last block, which names the prefix up to there.
        next: hash of the prompt's next block; None if the prompt ends with it.
        holders: instances that hold it.
    """

    last: BlockHash
    next: BlockHash | None
    holders: Collection[InstanceId]


def key_portion(index: PrefixIndex, request: PlacementRequest, held: HeldTokens) -> KeyPortion | None:
    """Return the key portion of a prompt of which `held` is held; None if less is held than missing.

    Where instances report their caches, the whole held prefix counts as one part.
    """
    most = max(held.tokens.values(), default=0)
    if 2 * most <= request.num_tokens:
        return None
    for space, key in request.keys.items():
        tree = index.trees.get(space)
        if tree is None:
            continue
        path, num_matched = tree.runs.path(pack_hashes(key.blocks))
        if 2 * num_matched * key.block_tokens > request.num_tokens:
            longest = max(path, key=lambda run: min(run.num_blocks, num_matched - run.start))
            end = min(longest.start + longest.num_blocks, num_matched)
            holders = tree.holders.ids(longest.holders)
        else:
            end = min(most // key.block_tokens, len(key.blocks))
            holders = tuple(instance for instance, num_held in held.tokens.items() if num_held == most)
        if end:
            following = key.blocks[end] if end < len(key.blocks) else None
            return KeyPortion(key.blocks[end - 1], following, holders)
    return None
