"""An index of what the prefix cache of each instance holds, built from the events that instances report.

An event may be late, and a report may be missing: what is found here is a hint, and a wrong one costs a
miss, never a wrong answer. Servers store a block twice when two requests compute it side by side, and report
each copy's removal; a block is held until as many copies are removed as were stored.

A block may be held in host memory or on disk too. Where it is held nowhere else, it counts as a block less
the time to load it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, Medium
from stretto.cluster.messages import InstanceId
from stretto.model.profile import Profile


class LoadingShares(NamedTuple):
    """Times to load the KV of a token, as shares of the time of its prefill. 1 is worth nothing."""

    host: float = 1.0
    disk: float = 1.0


NO_LOADING = LoadingShares()
"""Shares of an instance of which no loading times are known: what it must load counts as missing."""


def loading_shares(profile: Profile) -> LoadingShares:
    """Return the shares of an instance with these predicted times."""
    if not profile.per_unit_s:
        return NO_LOADING
    return LoadingShares(
        *(
            min(1.0, time_s / profile.per_unit_s) if time_s else 1.0
            for time_s in (profile.host_token_s, profile.disk_token_s)
        )
    )


class HeldBlocks:
    """An index of the KV blocks in the prefix caches of all instances, built from the instances' reports:
    which blocks each instance holds, and which instances hold each block.
    """

    def __init__(self) -> None:
        self._copies: dict[InstanceId, dict[BlockHash, int]] = {}
        self._elsewhere: dict[InstanceId, dict[BlockHash, Counter[Medium]]] = {}
        self._holders: dict[BlockHash, dict[InstanceId, None]] = {}

    def apply(self, instance: InstanceId, events: Iterable[KVEvent]) -> None:
        """Update the index with the changes of its cache that an instance reports, in order.

        The removal of an unknown block is ignored.
        """
        copies = self._copies.setdefault(instance, {})
        for event in events:
            match event:
                case BlockStored(hash=block, medium="device"):
                    copies[block] = copies.get(block, 0) + 1
                    self._holders.setdefault(block, {})[instance] = None
                case BlockStored(hash=block, medium=medium):
                    elsewhere = self._elsewhere.setdefault(instance, {})
                    elsewhere.setdefault(block, Counter())[medium] += 1
                    self._holders.setdefault(block, {})[instance] = None
                case BlockRemoved(hash=block, medium="device") if block in copies:
                    copies[block] -= 1
                    if copies[block] == 0:
                        del copies[block]
                        if block not in self._elsewhere.get(instance, ()):
                            self._drop(block, instance)
                case BlockRemoved(hash=block, medium=medium) if medium != "device":
                    self._remove_elsewhere(instance, block, medium)
                case AllBlocksCleared():
                    self.forget(instance)
                    copies = self._copies.setdefault(instance, {})

    def forget(self, instance: InstanceId) -> None:
        """Remove all blocks of an instance from the index, because it is gone or its cache is empty."""
        for block in self.held_by(instance):
            self._drop(block, instance)
        self._copies.pop(instance, None)
        self._elsewhere.pop(instance, None)

    def held_by(self, instance: InstanceId) -> frozenset[BlockHash]:
        """Return the hashes of the KV blocks that an instance's prefix cache is known to hold, wherever."""
        return frozenset((*self._copies.get(instance, ()), *self._elsewhere.get(instance, ())))

    def is_empty(self, instance: InstanceId) -> bool:
        """Return whether an instance's prefix cache is not known to hold any KV block, wherever."""
        return not self._copies.get(instance) and not self._elsewhere.get(instance)

    def num_held(
        self, instance: InstanceId, blocks: Sequence[BlockHash], loading: LoadingShares = NO_LOADING
    ) -> float:
        """Return the length of the longest prefix of `blocks` (the block hashes of a prompt) that an instance
        holds, in blocks.

        A block that it must load from host memory or disk counts as the share of its prefill that this saves.
        """
        copies, elsewhere = self._copies.get(instance), self._elsewhere.get(instance)
        if elsewhere:
            return self._num_worth(copies or {}, elsewhere, blocks, loading)
        if not copies:
            return 0
        return next((i for i, block in enumerate(blocks) if block not in copies), len(blocks))

    def longest(self, blocks: Sequence[BlockHash]) -> int:
        """Return the length of the longest prefix of `blocks` (the block hashes of a prompt) that any one
        instance holds, in blocks, wherever it holds them. Caches evict the end of a prefix first, so that an
        instance holds all that comes before a block that it holds: the search halves the prompt.
        """
        return bisect_left(blocks, True, key=lambda block: block not in self._holders)

    @property
    def num_instances(self) -> int:
        """Number of instances that have reported something since they were last forgotten."""
        return len(self._copies)

    def holders(self, blocks: Sequence[BlockHash], limit: int) -> list[InstanceId]:
        """Return at most `limit` instances that hold a prefix of `blocks` (the block hashes of a prompt),
        those with the longest prefixes first.

        The limit costs little: of the many instances that hold a common prefix, one is likely to be lightly
        loaded.
        """
        if not self._holders:
            return []
        limit = min(limit, len(self._copies.keys() | self._elsewhere.keys()))
        found: dict[InstanceId, None] = {}
        for block in reversed(blocks):
            for instance in self._holders.get(block, ()):
                found[instance] = None
                if len(found) >= limit:
                    return list(found)
        return list(found)

    def check_invariants(self) -> None:
        """Check that the index by instance agrees with the index by block. Tests call it after every
        event.
        """
        instances = {*self._copies, *self._elsewhere}
        pairs = {(block, instance) for instance in instances for block in self.held_by(instance)}
        assert pairs == {(block, instance) for block, held in self._holders.items() for instance in held}
        assert all(count > 0 for copies in self._copies.values() for count in copies.values())
        assert all(self._holders.values())

    @staticmethod
    def _num_worth(
        copies: Mapping[BlockHash, int],
        elsewhere: Mapping[BlockHash, Counter[Medium]],
        blocks: Sequence[BlockHash],
        loading: LoadingShares,
    ) -> float:
        num_worth = 0.0
        for block in blocks:
            if block in copies:
                num_worth += 1.0
            elif (media := elsewhere.get(block)) is not None:
                num_worth += 1.0 - (loading.host if media["host"] else loading.disk)
            else:
                break
        return num_worth

    def _remove_elsewhere(self, instance: InstanceId, block: BlockHash, medium: Medium) -> None:
        elsewhere = self._elsewhere.get(instance, {})
        media = elsewhere.get(block)
        if media is None or not media[medium]:
            return
        media[medium] -= 1
        if not media.total():
            del elsewhere[block]
            if block not in self._copies.get(instance, ()):
                self._drop(block, instance)

    def _drop(self, block: BlockHash, instance: InstanceId) -> None:
        del self._holders[block][instance]
        if not self._holders[block]:
            del self._holders[block]
