"""What an instance's prefix cache holds, told as data: a prefix index elsewhere folds these in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stretto.cluster.block_hashes import BlockHash


@dataclass(frozen=True, slots=True)
class BlockStored:
    """The KV of `tokens`, a full block behind `parent`, can be found under `hash` from now on."""

    hash: BlockHash
    parent: BlockHash
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """No longer."""

    hash: BlockHash


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache is empty."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
