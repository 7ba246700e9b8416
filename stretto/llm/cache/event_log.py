"""Event log of a prefix cache: which full blocks it stored and evicted."""

from __future__ import annotations

from stretto.cluster.block_hashes import Hasher
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, Medium
from stretto.llm.cache.block_runs import BlockRun


class CacheEventLog:
    """A log of the full blocks that a prefix cache stores and evicts, for routers that track what the cache
    holds.

    It records nothing unless `wanted`.
    """

    def __init__(self, block_tokens: int, *, wanted: bool, medium: Medium = "device") -> None:
        self._is_wanted = wanted
        self._medium = medium
        self._block_tokens = block_tokens
        self._hasher = Hasher(block_tokens)
        self._events: list[KVEvent] = []

    def stored(self, node: BlockRun, parent: BlockRun, tokens: list[int]) -> None:
        """Record that full blocks with these tokens were added to the cache, as the last blocks of `node`.

        They follow the blocks of `parent`, which may be the same node.
        """
        if not self._is_wanted or len(tokens) < self._block_tokens:
            return
        above = parent.hashes[-1] if parent.hashes else self._hasher.root(parent.salt)
        hashes = list(self._hasher.chain_all(above, tokens))
        for place, chained in enumerate(hashes):
            start = place * self._block_tokens
            block = tuple(tokens[start : start + self._block_tokens])
            self._events.append(BlockStored(chained, above, block, medium=self._medium))
            above = chained
        node.hashes += hashes

    def removed(self, node: BlockRun, num_blocks: int) -> None:
        """Record that the last `num_blocks` blocks of `node` are about to be evicted."""
        if node.hashes:
            self._events += [BlockRemoved(one, self._medium) for one in node.hashes[: -num_blocks - 1 : -1]]
            del node.hashes[-num_blocks:]

    def cleared(self) -> None:
        """Record that the prefix cache has been emptied."""
        if self._is_wanted:
            self._events.append(AllBlocksCleared())

    def take(self) -> list[KVEvent]:
        """Return, and forget, the changes of the cache recorded since the last call."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events
