"""Tokens of an emulated server that has a real model's tokenizer. Needs the package tokenizers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from stretto.emulate.tokens import Piece
from stretto.model.errors import ConfigError

_WORD = re.compile(r" [a-z]{2,8}")
_LAST = re.compile(r"[.!?]")
_MAX_WORDS = 1024


class EmulatedTokens:
    """The tokenizer in a model's directory.

    Made-up texts consist of its tokens that are a space and a word.

    Raises:
        ConfigError: the directory has no tokenizer that can be used.
    """

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer from `folder`. Raises ConfigError if it cannot be used."""
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # whatever the loader raises, it is about this file
            raise ConfigError(f"cannot load the tokenizer in {folder}: {error}") from error
        (self._before,) = self.encode("a", is_prompt=False)[:1]
        pieces = [(one, self._text_of(one)) for one in range(self._tokenizer.get_vocab_size())]
        self.words: Sequence[Piece] = [p for p in pieces if _WORD.fullmatch(p[1])][:_MAX_WORDS]
        self.last_words: Sequence[Piece] = [p for p in pieces if _LAST.fullmatch(p[1])] or self.words
        if not self.words:
            raise ConfigError(f"the tokenizer in {folder} has no tokens that are a space and a word")

    def encode(self, text: str, *, is_prompt: bool = True) -> list[int]:
        """Return the token ids of a text; those of a whole prompt may begin with a special one."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=is_prompt).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special ones included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def cut(self, text: str) -> list[Piece]:
        """Return the pieces of a given answer; the text between two tokens goes to the first of them."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        starts = [0, *(start for start, _ in encoded.offsets[1:]), len(text)]
        return [(one, text[starts[i] : starts[i + 1]]) for i, one in enumerate(encoded.ids)]

    def _text_of(self, one: int) -> str:
        """Return the text that a token adds behind another one."""
        return self.decode([self._before, one])[len(self.decode([self._before])) :]
