"""Finds the KV blocks of a prompt's leading tokens, and decides which to give up.

The cache is a tree. A node is a block whose tokens are known; a path from a root, of which every tenant
has its own, spells a prefix. Its rules:

- The cache is one holder of each of its blocks. A block held by nobody else is *idle*. Who holds a block
  holds all blocks before it, so nothing idle ever has a descendant in use.
- Only full blocks are shared. Where a prompt leaves the tree within a block, full or not, that block is
  copied and the copy written on. So the last block of a sequence is always its own.
- Idle blocks are evicted when the pool runs dry: leaves first, the least recently used first. Those under
  a *lease*, prefilled ahead for a query whose next sequence has yet to come, go last.
- A node has owners, the queries that used it. When the last of them is released, it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.llm.block_hashes import BlockHash, Hasher
from stretto.llm.blocks import BlockPool
from stretto.llm.cache_nodes import Node, Owners
from stretto.llm.eviction import EvictionQueue, Rank
from stretto.llm.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent


@dataclass(frozen=True, slots=True)
class CacheHit:
    """The leading `num_tokens` of a prompt are in `blocks`, and behind them the first ones of `tail`."""

    blocks: tuple[int, ...] = ()
    num_tokens: int = 0
    tail: int | None = None


class PrefixCache:
    """Holds blocks of `pool` beyond the sequences that filled them."""

    def __init__(self, pool: BlockPool, block_tokens: int, *, with_events: bool = False) -> None:
        self.hasher = Hasher(block_tokens)
        self.version = 0
        """Changes whenever a lookup may have a new answer."""
        self._pool = pool
        self._block_tokens = block_tokens
        self._events: list[KVEvent] | None = [] if with_events else None
        self._roots: dict[str, Node] = {}
        self._by_hash: dict[BlockHash, Node] = {}
        self._by_block: dict[int, Node] = {}
        self._owners = Owners()
        self._evictable = EvictionQueue(self._rank)
        self._num_idle = 0
        self._num_nodes_made = 0
        self._clock = 0

    def __len__(self) -> int:
        return len(self._by_block)

    @property
    def num_available(self) -> int:
        """Blocks that `acquire` could hand out, evicting as many as it takes."""
        return self._pool.num_free + self._num_idle

    def is_idle(self, block: int) -> bool:
        """Whether only the cache holds `block`."""
        return block in self._by_block and self._pool.num_holders(block) == 1

    def look_up(self, salt: str, tokens: Sequence[int], hashes: Sequence[BlockHash], limit: int) -> CacheHit:
        """The longest cached prefix of tokens[:limit]. Changes nothing.

        Args:
            hashes: of the full blocks of `tokens`.
        """
        node = self._roots.get(salt)
        if node is None:
            return CacheHit()
        blocks = []
        for chained in hashes[: limit // self._block_tokens]:
            child = self._by_hash.get(chained)
            if child is None:
                break
            assert child.block is not None
            blocks.append(child.block)
            node = child
        num_tokens = len(blocks) * self._block_tokens
        rest = tokens[num_tokens : min(limit, num_tokens + self._block_tokens)]
        tail, num_in_tail = node.longest_tail(rest)
        return CacheHit(tuple(blocks), num_tokens + num_in_tail, tail)

    def hold(self, blocks: Sequence[int], owner: str) -> None:
        """One more holder of cached blocks, in the order of their path. Ends the owner's leases on them."""
        self._clock += 1
        for block in blocks:
            node = self._by_block[block]
            if self._pool.num_holders(block) == 1:
                self._num_idle -= 1
            self._pool.share(block)
            node.last_used = self._clock
            self._owners.own(node, owner)
            if owner in node.lessees:
                self._owners.end_lease(node, owner)
                self._offer(node)

    def touch(self, block: int) -> None:
        """A cached block was used, if only to be copied."""
        self._clock += 1
        node = self._by_block[block]
        node.last_used = self._clock
        self._offer(node)

    def acquire(self) -> int:
        """A block for new tokens, evicting one if need be. There has to be one: see `num_available`."""
        if self._pool.num_free == 0:
            self._evict_one()
        return self._pool.acquire()

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less of each of a sequence's blocks, cached or not."""
        for block in reversed(blocks):
            self._pool.release(block)
            node = self._by_block.get(block)
            if node is not None and self._pool.num_holders(block) == 1:
                self._num_idle += 1
                if not node.owners:
                    self._remove(node)
                elif not node.children:
                    self._offer(node)

    def store(
        self,
        salt: str,
        parent: int | None,
        tokens: Sequence[int],
        block: int,
        owner: str,
        chained: BlockHash | None = None,
    ) -> int:
        """Register a block of its only holder that now has the KV of `tokens`, behind block `parent`.

        Returns the block that the cache has for these tokens: `block`, or an older one which the caller then
        holds instead of `block`. A block that is not full is kept only if it adds something, and one
        that it extends goes. `chained` is the hash of a full block, if it is known.
        """
        above = self._root(salt) if parent is None else self._by_block[parent]
        key = tuple(tokens)
        siblings = above.children.get(key[0], ())
        is_full = len(key) == self._block_tokens
        if chained is None:
            chained = self.hasher.chain(above.hash, key)
        if is_full and (twin := self._by_hash.get(chained)) is not None:
            assert twin.block is not None
            self.hold([twin.block], owner)
            self._pool.release(block)
            return twin.block
        if not is_full:
            for other in siblings:
                if other.tokens[: len(key)] == key:
                    self._owners.own(other, owner)
                    assert other.block is not None
                    return other.block
        node = Node(self._num_nodes_made, chained, key, block, above)
        self._num_nodes_made += 1
        self.version += 1
        for other in list(siblings) if siblings else ():
            shorter = len(other.tokens) < len(key) and key[: len(other.tokens)] == other.tokens
            if shorter and other.block is not None and self.is_idle(other.block):
                for other_owner in sorted(other.owners):
                    self._owners.own(node, other_owner)
                for lessee in sorted(other.lessees - {owner}):
                    self._owners.lease(node, lessee)
                self._remove(other)
        if parent is None:
            self._roots[salt] = above  # it may have gone with its last child
        above.children.setdefault(key[0], []).append(node)
        self._by_block[block] = node
        self._pool.share(block)
        self._clock += 1
        node.last_used = self._clock
        self._owners.own(node, owner)
        if is_full:
            self._by_hash[chained] = node
            if self._events is not None:
                self._events.append(BlockStored(chained, above.hash, key))
        return block

    def lease(self, block: int, owner: str) -> None:
        """Keep `block`, and so all before it, longer than what is not under a lease."""
        node = self._by_block[block]
        self._owners.lease(node, owner)
        self._offer(node)

    def forget(self, owner: str) -> None:
        """The owner's leases end, and what only it used goes, as soon as it is idle."""
        leased, owned = self._owners.forget(owner)
        for node in leased:
            self._offer(node)
        for node in reversed(owned):
            if not node.owners and node.block is not None and self.is_idle(node.block):
                self._remove(node)

    def clear(self) -> None:
        """Evict everything idle."""
        while self._num_idle:
            self._evict_one()
        if not self._by_block and self._events is not None:
            self._events.append(AllBlocksCleared())

    def take_events(self) -> list[KVEvent]:
        """What happened since the last call."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def _root(self, salt: str) -> Node:
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(-1, self.hasher.root(salt), (), None, None)
        return root

    def _rank(self, block: int) -> Rank | None:
        """When to evict a block, if it may be: the idle leaves."""
        node = self._by_block.get(block)
        return node.rank if node is not None and not node.children and self.is_idle(block) else None

    def _offer(self, node: Node) -> None:
        """A node may have become evictable, or its rank may have changed."""
        if node.block is not None:
            self._evictable.offer(node.block)

    def _evict_one(self) -> None:
        self._remove(self._by_block[self._evictable.pop()])

    def _remove(self, node: Node) -> None:
        """Give an idle leaf's block back to the pool."""
        assert node.parent is not None
        assert node.block is not None
        assert not node.children
        self.version += 1
        self._num_idle -= 1
        siblings = node.parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del node.parent.children[node.tokens[0]]
        self._owners.drop(node)
        del self._by_block[node.block]
        self._pool.release(node.block)
        if self._by_hash.get(node.hash) is node:
            del self._by_hash[node.hash]
            if self._events is not None:
                self._events.append(BlockRemoved(node.hash))
        if node.parent.block is not None:
            if node.parent.owners:  # or it goes next
                self._offer(node.parent)
        elif not node.parent.children:
            self._roots = {salt: root for salt, root in self._roots.items() if root is not node.parent}

    def check_invariants(self) -> None:
        """Raises AssertionError unless the rules above hold."""
        self._pool.check_invariants()
        found: dict[int, Node] = {}
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for first, siblings in node.children.items():
                assert siblings
                assert len(node.tokens) in (0, self._block_tokens)
                for child in siblings:
                    assert child.parent is node
                    assert child.tokens[0] == first
                    assert child.block is not None
                    assert self._pool.num_holders(child.block) > 0
                    if node.block is not None:
                        assert self.is_idle(child.block) or not self.is_idle(node.block)
                        assert child.owners <= node.owners
                    assert child.owners or not self.is_idle(child.block)
                    found[child.block] = child
                    stack.append(child)
        assert found == self._by_block
        assert self._num_idle == sum(map(self.is_idle, found))
        assert all(node.hash in self._by_hash for node in found.values() if self._is_full(node))
        assert len(self._by_hash) == sum(map(self._is_full, found.values()))
        leaves = [block for block, node in found.items() if not node.children and self.is_idle(block)]
        assert all(block in self._evictable for block in leaves)
        self._owners.check_invariants()

    def _is_full(self, node: Node) -> bool:
        return len(node.tokens) == self._block_tokens
