"""Turns generated tokens into text, delta by delta."""

from __future__ import annotations

from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """The interface of what turns tokens into text: the decoding half of a tokenizer."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text of these tokens; it may end with U+FFFD, for half a character."""
        ...


class TextStream:
    """A converter of generated tokens to text, one at a time: it returns what each new token adds to the
    text.

    It returns "" while the text ends within a character. The text of a token may depend on the one before it
    (a leading space). So a delta is the difference of two short texts: with and without the new tokens.
    Earlier tokens are never decoded again.
    """

    def __init__(self, tokenizer: Decoder, known: dict[int, str] | None = None) -> None:
        """Start a stream; `known` caches texts of single tokens, and may be shared by streams."""
        self._tokenizer = tokenizer
        self._known = {} if known is None else known
        self._tokens: list[int] = []
        self._num_context = 0
        self._context_text = ""

    def feed(self, token: int) -> str:
        """Append a token, and return the text that it adds; "" if it ends within a character."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(_REPLACEMENT) or len(text) <= len(self._context_text):
            return ""
        delta = text[len(self._context_text) :]
        # The tokens of this delta are the context of the next one.
        self._tokens = self._tokens[self._num_context :]
        self._num_context = len(self._tokens)
        self._context_text = self._decoded()
        return delta

    def _decoded(self) -> str:
        if self._num_context != 1:
            return self._tokenizer.decode(self._tokens)
        (token,) = self._tokens
        if token not in self._known:
            self._known[token] = self._tokenizer.decode(self._tokens)
        return self._known[token]
