"""Chained hashes of token blocks: two blocks with equal hashes have equal tokens from the prompt's beginning
on, and the same salt.

The hash is cryptographic and starts from the tenant's salt, so that no tenant can construct a prefix in
another tenant's cache, or learn from timings what it holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

BlockHash: TypeAlias = bytes


class Hasher:
    """Hashes blocks of `block_tokens` tokens of a prompt, so that prompts with equal beginnings have equal
    first hashes.

    The hash of a block depends on all tokens before it too.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens

    def root(self, salt: str) -> BlockHash:
        """Return the hash from which the chain of a prompt's block hashes starts.

        It depends on `salt`, which differs by tenant, so that tenants share no hashes.
        """
        return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16, person=b"stretto-kv").digest()

    def chain(self, parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
        """Return the hash of one block, full or not, that follows the block with the hash `parent`."""
        return _chained(parent, array("q", tokens).tobytes())

    def extend(self, hashes: list[BlockHash], salt: str, tokens: Sequence[int]) -> None:
        """Complete the list of a prompt's block hashes: append those of the full blocks of `tokens` that
        `hashes` lacks.

        `hashes` has the hashes of the first blocks of the same tokens under the same `salt` (which differs by
        tenant).
        """
        first, end = len(hashes), len(tokens) // self.block_tokens
        if first == end:
            return
        parent = hashes[-1] if hashes else self.root(salt)
        ids = array("q", tokens[first * self.block_tokens : end * self.block_tokens])
        data, size = ids.tobytes(), ids.itemsize * self.block_tokens
        for start in range(0, len(data), size):
            parent = _chained(parent, data[start : start + size])
            hashes.append(parent)


def _chained(parent: BlockHash, data: bytes) -> BlockHash:
    return blake2b(data, digest_size=16, key=parent).digest()
