"""Fast chained hashes of a prompt's blocks, by which a router or a placement policy
finds a prompt's beginning in its index.

A hash has 8 bytes and depends on all of the prompt up to its block's end. It is a multilinear hash: a
block's words are multiplied by fixed random numbers and added, so are the blocks' sums, all modulo 2^64.
All blocks are hashed in a few calls of numpy, ten times as fast as with one call a block.

The hashes are not cryptographic. They only serve to choose an instance: a collision costs time and never
changes an answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from stretto.cluster.block_hashes import BlockHash, Hasher

HASH_BYTES = 8
"""Length of a hash in bytes."""

_BLOCK = np.uint64(0x632BE59BD9B4E019)
"""Number that each block adds, so that blocks of zeros count."""
_MAX_ROOTS = 1024
"""Roots that are kept, because the prompts of a model and a tenant have the same one."""
_Words: TypeAlias = NDArray[np.uint64]
_WORD = np.dtype("<u4")
_WORD_BYTES = 4
_HASH = np.dtype(np.uint64)
_HASH_DATA = np.dtype(f"V{HASH_BYTES}")


class PackedHashes(Sequence[BlockHash]):
    """A sequence of hashes of 8 bytes each, kept as one `bytes` object, `data`."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        """Return the number of hashes."""
        return len(self.data) // HASH_BYTES

    @overload
    def __getitem__(self, place: SupportsIndex) -> BlockHash: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[BlockHash]: ...
    def __getitem__(self, place: Any) -> BlockHash | Sequence[BlockHash]:
        """Return one hash, or a list of several."""
        data = self.data
        if type(place) is int and place >= 0:  # asked very often
            if found := data[place * HASH_BYTES : (place + 1) * HASH_BYTES]:
                return found
            raise IndexError(place)
        if isinstance(place, slice):
            begin, end, step = place.indices(len(self))
            if step == 1:
                return _cut(data[begin * HASH_BYTES : end * HASH_BYTES])
            return [self[one] for one in range(begin, end, step)]
        at = range(len(self))[place]
        return data[at * HASH_BYTES : (at + 1) * HASH_BYTES]

    def __iter__(self) -> Iterator[BlockHash]:
        """Iterate over the hashes, in order."""
        return iter(_cut(self.data))

    def __reversed__(self) -> Iterator[BlockHash]:
        """Iterate over the hashes, from the last to the first."""
        data = self.data
        return (data[at : at + HASH_BYTES] for at in range(len(data) - HASH_BYTES, -1, -HASH_BYTES))

    def __eq__(self, other: object) -> bool:
        """Return whether `other` has the same hashes."""
        return isinstance(other, PackedHashes) and self.data == other.data

    def __hash__(self) -> int:
        """Return the hash of the object itself, for use in dicts."""
        return hash(self.data)

    def __repr__(self) -> str:
        return f"PackedHashes(<{len(self)} hashes>)"


def _cut(data: bytes) -> list[BlockHash]:
    """Return the hashes in some bytes. numpy cuts these in a fourth of the time that slices take."""
    hashes: list[BlockHash] = np.ndarray((len(data) // HASH_BYTES,), _HASH_DATA, data).tolist()
    return hashes


def pack_hashes(hashes: Sequence[BlockHash]) -> bytes:
    """Return the first 8 bytes of each hash, joined."""
    if isinstance(hashes, PackedHashes):
        return hashes.data
    return b"".join([one[:HASH_BYTES] for one in hashes])


class PrefixHasher:
    """Hashes the full blocks of prompts, so that prompts with equal beginnings have equal first hashes.

    Args:
        block_words: length of a block, in words of 32 bits. A token id is one word, a text has four bytes in
            a word.
    """

    def __init__(self, block_words: int) -> None:
        self.block_words = block_words
        self._factors = _random_words(block_words, first=1) | np.uint64(1)
        self._places = _places_of(64)

    def hash_ids(self, ids: Sequence[int], root: int) -> PackedHashes:
        """Return the hashes of the full blocks of token ids. An array of type "I" is read without a copy."""
        words = ids if isinstance(ids, array) and ids.typecode == "I" else array("I", ids)
        return self.hash_buffer(words, root)

    def hash_buffer(self, data: bytes | array[int] | memoryview, root: int) -> PackedHashes:
        """Return the hashes of the full blocks of a buffer of 32-bit words, or of UTF-8 text.

        Args:
            root: number on which all hashes depend, such as `salted_root` gives.
        """
        width = self.block_words
        num_bytes = data.itemsize * len(data) if isinstance(data, array) else len(data)
        num_blocks = num_bytes // (width * _WORD_BYTES)
        if not num_blocks:
            return PackedHashes(b"")
        words: NDArray[np.uint32] = np.ndarray((num_blocks, width), _WORD, data)
        sums: _Words = np.empty(num_blocks + 1, _HASH)
        sums[0] = root
        blocks = sums[1:]
        words.dot(self._factors, blocks)
        factors, constants = self._places
        if num_blocks > len(factors):
            factors, constants = self._places = _places_of(2 * num_blocks)
        blocks *= factors[:num_blocks]
        np.add.accumulate(sums, out=sums)
        blocks += constants[:num_blocks]
        return PackedHashes(blocks.tobytes())


@lru_cache(maxsize=_MAX_ROOTS)
def salted_root(*names: str) -> int:
    """Return the number on which all hashes of a prompt depend, made of `names`: what must not be mixed up,
    such as a space, a model, an adapter and a tenant's salt.
    """
    salt = "".join(f"{len(name)}:{name}" for name in names)
    return int.from_bytes(Hasher(1).root(salt)[:HASH_BYTES], "little")


def _places_of(num_blocks: int) -> tuple[_Words, _Words]:
    """Return the numbers by which the blocks of a prompt are multiplied, and what the added number of each
    block and of all before it comes to.
    """
    places = _random_words(num_blocks, first=1 << 32) | np.uint64(1)
    return places, np.add.accumulate(places * _BLOCK)


def _random_words(count: int, first: int) -> _Words:
    """Return fixed random numbers: the outputs of the generator splitmix64 for the places from `first`."""
    state = np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
