"""Generated tokens as text, delta by delta."""

from __future__ import annotations

from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """A tokenizer's way back."""

    def decode(self, tokens: list[int]) -> str: ...


class TextStream:
    """What each token adds to the text; nothing while the text ends within a character.

    A token's text may depend on the one before it (a leading space), so a delta is the difference between two
    short texts that begin alike: with the new tokens and without. The rest is never decoded again.
    """

    def __init__(self, tokenizer: Decoder, known: dict[int, str] | None = None) -> None:
        """`known` are the texts of single tokens, which streams may share."""
        self._tokenizer = tokenizer
        self._known = {} if known is None else known
        self._tokens: list[int] = []
        self._num_told = 0
        self._text_told = ""

    def feed(self, token: int) -> str:
        """The text that `token` completes."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(_REPLACEMENT) or len(text) <= len(self._text_told):
            return ""
        delta = text[len(self._text_told) :]
        # What was told just now is the context of what follows.
        self._tokens = self._tokens[self._num_told :]
        self._num_told = len(self._tokens)
        self._text_told = self._told()
        return delta

    def _told(self) -> str:
        if self._num_told != 1:
            return self._tokenizer.decode(self._tokens)
        (token,) = self._tokens
        if token not in self._known:
            self._known[token] = self._tokenizer.decode(self._tokens)
        return self._known[token]
