"""Events that report the content of an instance's prefix cache; a prefix index applies them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stretto.cluster.block_hashes import BlockHash


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Event: the cache now has the KV of `tokens`, a full block after `parent`, under `hash`."""

    hash: BlockHash
    parent: BlockHash
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Event: the cache no longer has the block `hash`."""

    hash: BlockHash


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Event: the cache is now empty."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
