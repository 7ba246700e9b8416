"""Tokens of emulated servers: the simulator's, one for every four characters of a text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Protocol, TypeAlias

from stretto.sim.synthetic_output import made_up_token_ids
from stretto.wire.requests import ChatMessage

Piece: TypeAlias = tuple[int, str]
"""A token's id, and the text that it adds to an answer."""


class Tokens(Protocol):
    """The interface of a tokenizer of an emulated server.

    Attributes:
        words: pieces of which made-up texts consist.
        last_words: pieces with which a text that ends by itself ends.
    """

    words: Sequence[Piece]
    last_words: Sequence[Piece]

    def encode(self, text: str, *, is_prompt: bool = True) -> list[int]:
        """Return the token ids of a text; those of a whole prompt may begin with a special one."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        ...

    def cut(self, text: str) -> list[Piece]:
        """Return the pieces of a given answer."""
        ...


def encode_chat(tokens: Tokens, messages: Sequence[ChatMessage]) -> list[int]:
    """Return the token ids of a chat's prompt: each message behind its role, then the assistant's role.

    Each message is tokenised by itself, so that the prompt of a later turn begins with that of an earlier.
    """
    ids: list[int] = []
    for message in messages:
        ids += tokens.encode(f"<|{message.role}|>", is_prompt=not ids)
        ids += tokens.encode(message.text, is_prompt=False)
    return ids + tokens.encode("<|assistant|>", is_prompt=False)


class FourCharacters:
    """A tokenizer that cuts a text every four characters, as the simulator does."""

    def __init__(self) -> None:
        syllables = [a + b for a, b in product("bdfghjklmnprstvw", "aeiou")]
        self.words: Sequence[Piece] = [_piece(f" {s}{end}") for s, end in product(syllables, "lnrst")]
        self.last_words: Sequence[Piece] = [_piece(f" {letter}.") for letter in "aeiou"]

    def encode(self, text: str, *, is_prompt: bool = True) -> list[int]:
        """Return the token ids of a text; none of an empty one."""
        return made_up_token_ids(text) if text else []

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; ids that no ASCII text has become U+FFFD."""
        return "".join(one.to_bytes(8, "little").rstrip(b"\0").decode("ascii", "replace") for one in ids)

    def cut(self, text: str) -> list[Piece]:
        """Return the pieces of a given answer."""
        return [_piece(text[start : start + 4]) for start in range(0, len(text), 4)]


def _piece(text: str) -> Piece:
    return made_up_token_ids(text)[0], text


FOUR_CHARACTERS: Tokens = FourCharacters()
