"""Hashes of the made-up tokens of prompts, for their keys. Pieces of texts that came before are not hashed
again: each prompt of a conversation begins with the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from stretto.cluster.block_hashes import BlockHash, Hasher
from stretto.model.values import Prompt
from stretto.sim.synthetic_output import PIECE_TOKENS, made_up_token_ids, prompt_ids

_PIECE_CHARS = 4 * PIECE_TOKENS


def made_up_hashes(block_tokens: int) -> Callable[[Prompt, str], Sequence[BlockHash]]:
    """Return a function that returns the chained hashes of the full blocks of a prompt's made-up tokens, as
    `token_space` does.
    """
    hasher = Hasher(block_tokens)

    def hashes(prompt: Prompt, salt: str) -> Sequence[BlockHash]:
        found: list[BlockHash] = []
        if len(prompt) != 1 or PIECE_TOKENS % block_tokens or not prompt[0].text.isascii():
            hasher.extend(found, salt, prompt_ids(prompt))
            return found
        text, parent = prompt[0].text, hasher.root(salt)
        end = len(text) // _PIECE_CHARS * _PIECE_CHARS
        for start in range(0, end, _PIECE_CHARS):
            found += _of_piece(block_tokens, parent, text[start : start + _PIECE_CHARS])
            parent = found[-1]
        rest = made_up_token_ids(text[end:])
        found += hasher.chain_all(parent, rest[: len(rest) // block_tokens * block_tokens])
        return found

    return hashes


@lru_cache(maxsize=2**14)
def _of_piece(block_tokens: int, parent: BlockHash, piece: str) -> tuple[BlockHash, ...]:
    """Return the hashes of the blocks of a piece of a text. What follows its last whole token is none."""
    return tuple(Hasher(block_tokens).chain_all(parent, made_up_token_ids(piece)[:PIECE_TOKENS]))
