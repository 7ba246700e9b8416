"""Prefix cache: finds the KV blocks of a prompt's leading tokens, and decides which blocks to evict.

The cache is a tree with one root for each tenant. A node is a run of blocks whose tokens are known; the path
from a root to a node is a prefix. A node is split where prefixes differ, and where one part of it is used and
the rest is not, so that costs grow with the number of nodes and not of blocks. The rules:

- A block belongs to one sequence or to the cache. A node counts the sequences that hold it; a node without
  holders is *idle*. A holder of a node holds all nodes before it, so an idle node has no descendants in use.
- Only full blocks are shared. If a prompt differs from the tree within a block, that block is copied, and the
  sequence continues the copy. So the last block of a sequence always belongs to the sequence.
- Idle blocks are evicted when the pool has no free ones: leaves first, those that are needed last or never
  first, and where nothing is known the least recently used first (`eviction.py`). Owners may have *promised*
  when they need a node again. A promise orders evictions, and nothing else. Nodes under a *lease* are evicted
  last: they were prefilled ahead for a query whose next sequence has not arrived.
- A node has owners, which are the queries that used it. It is removed when its last owner is released, unless
  what is released is to be kept: then it belongs to nobody, which counts as an owner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stretto.cluster.kv_events import KVEvent, Medium
from stretto.llm.cache.block_pool import BlockPool, CacheEventLog
from stretto.llm.cache.block_runs import BlockRun
from stretto.llm.cache.eviction import EvictionQueue
from stretto.llm.cache.tree import CacheHit, CacheTree

__all__ = ["CacheHit", "PrefixCache"]

_NOBODY = "\0nobody"
"""Owner of what ended queries have left in the cache; no query has this name."""


class PrefixCache:
    """The prefix cache of one LLM instance: it keeps KV blocks for reuse after their sequences have ended.

    It is a tree of nodes, and a node is a run of consecutive blocks. A sequence holds the nodes that it uses;
    nodes that no sequence holds can be evicted. With `with_events`, stored and evicted blocks are recorded.
    """

    def __init__(
        self, pool: BlockPool, block_tokens: int, *, with_events: bool = False, medium: Medium = "device"
    ) -> None:
        self.version = 0
        """Number that changes whenever blocks are stored or evicted, so that lookups may have new answers."""
        self.pool = pool
        self._block_tokens = block_tokens
        self._tree = CacheTree(block_tokens)
        self._event_log = CacheEventLog(block_tokens, wanted=with_events, medium=medium)
        self._evictable = EvictionQueue()
        self._num_blocks = 0
        self._num_idle = 0
        self._clock = 0

    def __len__(self) -> int:
        return self._num_blocks

    @property
    def now_s(self) -> float:
        """Present time in seconds, by the clock of promises. It never goes back."""
        return self._evictable.now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._evictable.now_s = max(self._evictable.now_s, now_s)

    @property
    def num_available(self) -> int:
        """Number of blocks that can be acquired now: free ones, and cached ones that can be evicted."""
        return self.pool.num_free + self._num_idle

    def num_idle_in(self, hit: CacheHit) -> int:
        """Return how many blocks of a cached prefix are used by no sequence, so that they could be
        evicted.
        """
        if hit.node is None or hit.node.num_holders:
            return 0
        before = (len(node.blocks) for node in hit.node.path() if not node.num_holders)
        return sum(before) - len(hit.node.blocks) + hit.num_in_node

    def look_up(self, salt: str, tokens: list[int], limit: int) -> CacheHit:
        """Find the longest prefix of tokens[:limit] cached for the tenant `salt`. Changes nothing."""
        return self._tree.look_up(salt, tokens, limit)

    def hold(self, hit: CacheHit, owner: str) -> BlockRun | None:
        """Protect the blocks of a cached prefix from eviction, because a sequence uses them. Returns the
        prefix's last node, to be given to `release`, or None if the prefix has no full block.

        The leases (which delay eviction) that the query `owner` has on them end. A node is split if the
        prefix ends within it.
        """
        self._clock += 1
        node = hit.node
        if node is None:
            return None
        if hit.num_in_node < len(node.blocks):
            node = self._tree.split(node, hit.num_in_node)
        for part in reversed(list(node.path())):
            self._hold(part, owner)
        return node

    def touch(self, node: BlockRun) -> int:
        """Mark the first block of a node as just used, so that it is evicted later;
        return the id of that block.
        """
        self._clock += 1
        if len(node.blocks) > 1:
            node = self._tree.split(node, 1)
        self._note_use(node)
        self._evictable.offer(node)
        return node.blocks[0]

    def acquire(self, num_blocks: int) -> list[int]:
        """Allocate blocks for new tokens, evicting cached ones if needed, and return their ids.

        `num_blocks` must not exceed `num_available`.
        """
        blocks = self.pool.acquire(min(num_blocks, self.pool.num_free))
        while (num_missing := num_blocks - len(blocks)) > 0:
            node = self._evictable.pop()
            num_cut = min(num_missing, len(node.blocks))
            if node.due_s is None:
                self._evictable.note_loss(num_cut)
            blocks += self._cut(node, num_cut)
        return blocks

    def release(self, node: BlockRun | None) -> None:
        """End one sequence's use of a node and of all nodes before it; nodes that no
        other sequence uses can then be evicted.
        """
        for part in node.path() if node is not None else ():
            part.num_holders -= 1
            if part.num_holders == 0:
                self._num_idle += len(part.blocks)
                if not part.owners:
                    self._remove(part)
                else:
                    self._evictable.offer(part)

    def store(
        self, salt: str, parent: BlockRun | None, tokens: list[int], blocks: list[int], owner: str
    ) -> tuple[BlockRun, list[int]]:
        """Add a sequence's full blocks, which hold the KV of `tokens`, to the cache.

        They follow `parent`, the last node that the sequence holds (None if it holds
        none yet). Where the cache has a block with the same tokens, that one is used and the sequence's own
        is freed. Returns the node that the sequence now holds instead of `parent`, and the blocks that it now
        uses.
        """
        node = parent or self._tree.root(salt)
        size = self._block_tokens
        older: list[int] = []
        while len(older) < len(blocks) and (twin := node.child(tokens, len(older) * size, size)):
            num_equal = self._tree.num_equal(twin, tokens, len(older) * size, len(tokens))
            node = self._tree.split(twin, num_equal) if num_equal < len(twin.blocks) else twin
            self._clock += 1
            self._hold(node, owner)
            older += node.blocks
        if older:
            self.pool.release(blocks[: len(older)])
            tokens, blocks = tokens[len(older) * size :], blocks[len(older) :]
        if blocks:
            node = self._insert(node, tokens, blocks, owner)
        return node, older + blocks

    def store_tail(
        self, salt: str, parent: BlockRun | None, tokens: list[int], block: int, owner: str
    ) -> tuple[BlockRun, bool]:
        """Add a sequence's last block, which is not full, to the cache, unless the cache has its tokens.

        It follows `parent`, the last node that the sequence holds (None if it holds
        none yet). Returns the node with these tokens, and whether `block` was added. If so, the sequence
        holds that node instead of `parent`.
        """
        above = parent or self._tree.root(salt)
        key = tuple(tokens)
        siblings = above.children.get(key[0])
        if siblings and (other := siblings.beginning_with(key)):
            node = self._tree.split(other, 1) if len(other.blocks) > 1 else other
            self._tree.owners.own(node, owner)
            if node.promises:
                node.note_promises()
                self._evictable.offer(node)
            return node, False
        return self._insert(above, list(tokens), [block], owner), True

    def lease(self, node: BlockRun, owner: str) -> None:
        """Protect a prefix that was computed ahead for the query `owner`: it is evicted after all others.

        The prefix ends with the last block of `node`, a run of cached blocks.
        """
        if len(node.blocks) > 1:
            self._tree.split(node, len(node.blocks) - 1)
        self._tree.owners.lease(node, owner)
        self._evictable.offer(node)

    def retain(
        self, salt: str, tokens: list[int], uses: Sequence[tuple[int, float | None]], owner: str
    ) -> None:
        """Note when the query `owner` expects to need cached prefixes of `tokens` again; it orders evictions
        only.

        What was noted of the query for the blocks of these tokens before is replaced. Blocks that are not
        cached, or that the query has not used, are left out.

        Args:
            uses: (number of leading tokens, time by the clock of `now_s`) of each expected use; None in place
                of a time if nothing is known. The query is expected never to need a block that no use covers.
        """
        hit = self._tree.look_up(salt, tokens, len(tokens))
        node = hit.node
        if node is None or owner not in node.owners:
            return
        if hit.num_in_node < len(node.blocks):
            node = self._tree.split(node, hit.num_in_node)
        for num_tokens, _ in uses:
            self._split_at(node, num_tokens // self._block_tokens)
        parts = list(node.path())
        tail = hit.tail
        if tail is not None and tail.parent is node and owner in tail.owners:
            is_whole = tail.start * self._block_tokens + len(tail.tokens) == hit.num_tokens
            parts += [tail] if is_whole else []  # else the tail belongs to what goes on otherwise
        for part in parts:
            self._promise(part, uses, owner)

    def _promise(self, node: BlockRun, uses: Sequence[tuple[int, float | None]], owner: str) -> None:
        num_tokens = node.start * self._block_tokens + len(node.tokens)
        times_s = [at_s for num, at_s in uses if num >= num_tokens]
        known_s = [at_s for at_s in times_s if at_s is not None]
        if known_s or not times_s:
            node.promises[owner] = min(known_s, default=math.inf)
        else:
            node.promises.pop(owner, None)
        node.note_promises()
        self._evictable.offer(node)

    def _split_at(self, node: BlockRun, num_blocks: int) -> None:
        """Split the path of `node` after its first `num_blocks` blocks, unless a node ends there."""
        for part in node.path():
            if part.start < num_blocks < part.start + len(part.blocks):
                self._tree.split(part, num_blocks - part.start)
                return

    def forget(self, owner: str) -> None:
        """Remove the cached blocks that only the query `owner` used, as soon as no sequence holds them.

        The query's leases, which protect prefixes from eviction, and its promises end.
        """
        leased, owned = self._tree.owners.forget(owner)
        for node in leased:
            self._evictable.offer(node)
        for node in owned:
            if node.owners:
                self._evictable.offer(node)
            elif not node.num_holders:
                self._remove(node)

    def keep_released(self, owner: str) -> None:
        """Keep the cached blocks that the query `owner` used, which has ended, until their memory is needed.

        The query's leases and promises end. Its blocks belong to nobody then, so that nodes which many
        queries use do not remember all of them.
        """
        for node in sorted(self._tree.owners.owned_by(owner), key=lambda one: one.start):
            self._tree.owners.own(node, _NOBODY)
        self.forget(owner)

    def clear(self) -> None:
        """Evict all cached blocks that no running sequence holds."""
        while self._num_idle:
            self._remove(self._evictable.pop())
        if not self._num_blocks:
            self._event_log.cleared()

    def take_events(self) -> list[KVEvent]:
        """Return, and forget, what changed in the cache since the last call: which full blocks were stored
        and which were evicted.
        """
        return self._event_log.take()

    def _hold(self, node: BlockRun, owner: str) -> None:
        if node.num_holders == 0:
            self._num_idle -= len(node.blocks)
            if node.due_s is None:
                self._evictable.note_reuse(len(node.blocks))
        node.num_holders += 1
        self._note_use(node)
        self._tree.owners.own(node, owner)
        if node.promises:
            node.promises.pop(owner, None)
            node.note_promises()
        if owner in node.lessees:
            self._tree.owners.end_lease(node, owner)

    def _note_use(self, node: BlockRun) -> None:
        node.last_used = self._clock
        node.used_s = self.now_s

    def _insert(self, parent: BlockRun, tokens: list[int], blocks: list[int], owner: str) -> BlockRun:
        """Add new blocks, held by one sequence, after `parent`. Idle shorter blocks that they extend are
        removed."""
        if not parent.children and len(tokens) >= self._block_tokens and _is_held_by_one(parent, owner):
            parent.tokens += tokens
            parent.blocks += blocks
            return self._note_insertion(parent, parent, tokens, len(blocks))
        first = tuple(tokens[: self._block_tokens])
        siblings = parent.children.get(first[0])
        shorter = (
            [other for other in siblings.beginnings_of(first) if not other.num_holders] if siblings else []
        )
        if shorter and len(blocks) > 1:  # owners of the shorter blocks own the first new block only
            parent = self._insert(parent, list(first), blocks[:1], owner)
            return self._insert(parent, tokens[len(first) :], blocks[1:], owner)
        start = parent.start + len(parent.blocks)
        node = BlockRun(parent.salt, tokens, list(blocks), parent, start, num_holders=1)
        for other in shorter:
            for other_owner in sorted(other.owners):
                self._tree.owners.own(node, other_owner)
            for lessee in sorted(other.lessees - {owner}):
                self._tree.owners.lease(node, lessee)
            self._remove(other)
        self._tree.add(node)
        self._tree.owners.own(node, owner)
        return self._note_insertion(node, parent, tokens, len(blocks))

    def _note_insertion(
        self, node: BlockRun, parent: BlockRun, tokens: list[int], num_blocks: int
    ) -> BlockRun:
        """Count blocks that were added at the end of `node`, after `parent`; return `node`."""
        self.version += 1
        self._clock += 1
        self._num_blocks += num_blocks
        self._note_use(node)
        self._event_log.stored(node, parent, tokens)
        return node

    def _remove(self, node: BlockRun) -> None:
        """Evict an idle leaf and return its blocks to the pool."""
        self.pool.release(self._cut(node, len(node.blocks)))

    def _cut(self, node: BlockRun, num_blocks: int) -> list[int]:
        """Take an idle leaf's last blocks out of the tree; returns them, the last one first."""
        assert node.parent is not None
        self.version += 1
        self._num_idle -= num_blocks
        self._num_blocks -= num_blocks
        evicted = node.blocks[: -num_blocks - 1 : -1]
        self._event_log.removed(node, num_blocks)
        if num_blocks < len(node.blocks):
            del node.blocks[-num_blocks:], node.tokens[-num_blocks * self._block_tokens :]
            self._evictable.offer(node)
            return evicted
        node.blocks.clear()
        self._tree.drop(node)
        if node.parent.owners:  # without owners it is a root, or about to be removed
            self._evictable.offer(node.parent)
        return evicted

    def check_invariants(self) -> None:
        """Raise AssertionError unless every block is counted once, as free, held or evictable."""
        self.pool.check_invariants()
        self._tree.check_invariants()
        nodes = self._tree.nodes()
        blocks = [block for node in nodes for block in node.blocks]
        assert len(set(blocks)) == len(blocks) == self._num_blocks
        assert self.pool.free().isdisjoint(blocks)
        assert sum(len(node.blocks) for node in nodes if not node.num_holders) == self._num_idle
        idle_leaves = [node for node in nodes if not node.children and not node.num_holders]
        assert all(node in self._evictable for node in idle_leaves)


def _is_held_by_one(node: BlockRun, owner: str) -> bool:
    """Return whether one sequence holds a node, of the query `owner` alone, and nothing else is known of it:
    then the sequence's next blocks may become a part of it.
    """
    if node.num_holders != 1 or node.lessees or node.promises:
        return False
    return not node.owners or (len(node.owners) == 1 and owner in node.owners)
