"""Events with which an instance reports what its prefix cache stores and removes. `HeldBlocks` applies
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stretto.cluster.block_hashes import BlockHash


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Event of a prefix cache: the cache now holds the KV of `tokens`, a full block that follows the block
    with the hash `parent`.

    `hash` identifies the block in later events.
    """

    hash: BlockHash
    parent: BlockHash
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Event of a prefix cache: the cache no longer holds the block `hash`."""

    hash: BlockHash


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Event of a prefix cache: the cache is now empty."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
