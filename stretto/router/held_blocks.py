"""What workers report of their prefix caches, and how much of a prompt's token ids each of them holds.

A state machine without IO. Reports name blocks of token ids; the length of a worker's blocks is that of those
it stores. What is late or missing costs a miss, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.cluster.block_hashes import BlockHash, Hasher
from stretto.cluster.held_blocks import NO_LOADING, HeldBlocks, LoadingShares
from stretto.cluster.kv_events import AllBlocksCleared, BlockStored, KVEvent
from stretto.router.messages import WorkerId


class HeldByWorkers:
    """The prefix caches of the workers that report them."""

    def __init__(self) -> None:
        self._held = HeldBlocks()
        self._hashers: dict[WorkerId, Hasher] = {}
        self._loading: dict[WorkerId, LoadingShares] = {}

    def __bool__(self) -> bool:
        """Return whether a worker has reported what its cache holds."""
        return bool(self._hashers)

    def set_loading(self, worker: WorkerId, loading: LoadingShares) -> None:
        """Set what it costs a worker to load KV from host memory and from disk."""
        self._loading[worker] = loading

    def apply(self, worker: WorkerId, events: Sequence[KVEvent]) -> bool:
        """Take the changes of a worker's cache, in order; return whether it was cleared among them."""
        self._held.apply(worker, events)
        computed = (one for one in events if isinstance(one, BlockStored) and one.medium == "device")
        if (stored := next(computed, None)) is not None:
            size, known = len(stored.tokens), self._hashers.get(worker)
            if known is None or known.block_tokens != size:
                self._hashers[worker] = Hasher(size)
        return any(isinstance(event, AllBlocksCleared) for event in events)

    def forget(self, worker: WorkerId) -> None:
        """Forget a worker, for example because it is gone."""
        self._held.forget(worker)
        self._hashers.pop(worker, None)
        self._loading.pop(worker, None)

    def held(self, ids: Sequence[int], workers: Sequence[WorkerId]) -> Mapping[WorkerId, int]:
        """Return how many of the first tokens of a prompt each of some workers holds; those that hold none
        are left out.

        The last token is always computed, so that an answer can begin. Tokens that must be loaded from host
        memory or disk count less.
        """
        chains: dict[int, list[BlockHash]] = {}
        found = {}
        for worker in workers:
            if (hasher := self._hashers.get(worker)) is None:
                continue
            size = hasher.block_tokens
            if (chain := chains.get(size)) is None:
                chain = chains[size] = []
                hasher.extend(chain, "", ids)
            loading = self._loading.get(worker, NO_LOADING)
            if num_blocks := self._held.num_held(worker, chain, loading):
                found[worker] = min(int(num_blocks * size), (len(ids) - 1) // size * size)
        return found

    def check_invariants(self) -> None:
        """Check that the index agrees with itself. For tests."""
        self._held.check_invariants()
