"""What a model reads of a long text.

A tokenizer makes tokens of all of a text before it cuts them off at the model's limit. They take some 180
bytes for each byte of the text, so a text of several MB is cut before it gets there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHARS = (16, 128, 1024)
"""Characters for each token of a model's limit, after which a text may be cut. Most texts have 3 to 5."""
_MARGIN = 2
"""Least tokens of a text that is cut, over the model's limit: a cut may change the last word before it, and
the tokens of that word are then far behind the limit.
"""


class LeadingText:
    """Cuts texts to a beginning that has the same tokens up to a model's limit.

    Args:
        tokenizer: tokenizer of the model; not changed. None leaves all texts whole.
        max_tokens: the model's limit; None for no limit.
    """

    def __init__(self, tokenizer: Tokenizer | None, max_tokens: int | None) -> None:
        self._max_tokens = max_tokens
        self._tokenizer = None if tokenizer is None else _without_limits(tokenizer)

    def cut(self, text: str) -> str:
        """Return the beginning of a text that decides what a model computes of it.

        A text of huge words or huge gaps is cut where it has 1,024 characters for each token of the limit.
        """
        if self._tokenizer is None or self._max_tokens is None:
            return text
        begin = text
        for num_chars in _CHARS:
            if len(text) <= num_chars * self._max_tokens:
                return text
            begin = text[: num_chars * self._max_tokens]
            if len(self._tokenizer.encode(begin, add_special_tokens=False)) > _MARGIN * self._max_tokens:
                break
        return begin


def _without_limits(backend: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer that neither cuts nor pads. Threads may share it: nothing changes it."""
    copied: Tokenizer = type(backend).from_str(backend.to_str())
    copied.no_truncation()
    copied.no_padding()
    return copied
