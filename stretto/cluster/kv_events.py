"""Events with which an instance reports what its prefix cache stores and removes. `HeldBlocks` applies
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from stretto.cluster.block_hashes import BlockHash

Medium: TypeAlias = Literal["device", "host", "disk"]
"""Where a cache holds a block: in the device's memory, in host memory, or on disk."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Event of a prefix cache: the cache now holds the KV of `tokens`, a full block that follows the block
    with the hash `parent`.

    `hash` identifies the block in later events. Of a block that is copied elsewhere, `parent` and `tokens`
    may be empty.
    """

    hash: BlockHash
    parent: BlockHash
    tokens: tuple[int, ...]
    medium: Medium = "device"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Event of a prefix cache: the cache no longer holds a copy of the block `hash`, of those in `medium`."""

    hash: BlockHash
    medium: Medium = "device"


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Event of a prefix cache: the cache is now empty."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
