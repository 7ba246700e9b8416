"""The prefixes that a server's prefix cache may hold: those it was sent, or those it reports.

Without reports this is a guess: a server evicts as it likes, and others use it too. A prompt counts from
when it is sent, so that of many queries at once only the first warms what they share. A wrong guess costs
a prefill at another time than expected, never an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from stretto.cluster.block_hashes import BlockHash, Hasher
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent

_MAX_BLOCKS = 1 << 16


class HeldByServer:
    """A record of which prompts' prefixes a server's prefix cache may hold.

    A prompt is a sequence of elements, token ids or characters, and is recorded in blocks of `block_len` of
    them. Blocks beyond `max_blocks` are forgotten, the least recently sent first.
    """

    def __init__(self, block_len: int, max_blocks: int | None = None) -> None:
        self._hasher = Hasher(block_len)
        self._max_blocks = min(max_blocks or _MAX_BLOCKS, _MAX_BLOCKS)
        self._held: OrderedDict[BlockHash, None] = OrderedDict()

    def num_held(self, prompt: Sequence[int], salt: str = "") -> int:
        """Return the length of the prefix of a prompt that the server may have cached for the tenant `salt`,
        in elements (token ids or characters).
        """
        return self._num_held(self._hashes(prompt, salt))

    def num_whole(self, prompt: Sequence[int]) -> int:
        """Return how many leading elements (token ids or characters) of a prompt fill whole cache blocks; the
        rest is never cached.
        """
        return len(prompt) // self._hasher.block_tokens * self._hasher.block_tokens

    def send(self, prompt: Sequence[int], salt: str = "") -> int:
        """Record that a prompt is sent to the server, which then probably has it in its prefix cache; return
        what `num_held` returned before.
        """
        hashes = self._hashes(prompt, salt)
        num_held = self._num_held(hashes)
        for block_hash in reversed(hashes):  # so that the last blocks are forgotten first
            self._add(block_hash)
        return num_held

    def apply(self, event: KVEvent) -> None:
        """Update the record of cached prefixes by a change of the server's prefix cache, as the server
        reports it.
        """
        match event:
            case BlockStored(hash=block_hash, medium="device"):
                self._add(block_hash)
            case BlockRemoved(hash=block_hash, medium="device"):
                self._held.pop(block_hash, None)
            case AllBlocksCleared():
                self._held.clear()

    def _num_held(self, hashes: Sequence[BlockHash]) -> int:
        num_blocks = next((at for at, one in enumerate(hashes) if one not in self._held), len(hashes))
        return num_blocks * self._hasher.block_tokens

    def _add(self, block_hash: BlockHash) -> None:
        self._held[block_hash] = None
        self._held.move_to_end(block_hash)
        while len(self._held) > self._max_blocks:
            self._held.popitem(last=False)

    def _hashes(self, prompt: Sequence[int], salt: str) -> list[BlockHash]:
        hashes: list[BlockHash] = []
        self._hasher.extend(hashes, salt, prompt)
        return hashes
