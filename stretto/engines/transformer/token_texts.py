"""Computes the bytes that each token adds to the decoded text; structured output is checked on that text.

A tokenizer may have a mark that its decoder removes together with the following space, so that a word has the
same token after a bracket or a quote, without a space, as in a sentence. A token then has two texts: one
after a mark, without its leading space, and one elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

NOTHING, END = 0, 1


class TokenTexts:
    """A table of the text that each token of a vocabulary adds to an output. Outputs that must follow a
    schema are held to it by these texts.

    Equal texts are stored once, under one number. The decoder of some tokenizers removes a certain special
    text (a *mark*) together with the space after it, so that a token's text may differ behind a mark: each
    token has two numbers. V is the size of the vocabulary.

    Attributes:
        texts: texts by number, perhaps parts of characters; NOTHING for tokens that add no text or must not
            be generated, END for the ends of sequence.
        elsewhere: number of each token's text, (V,).
        behind_mark: number of each token's text after a mark, (V,).
    """

    def __init__(
        self, tokens: Sequence[bytes], special: Iterable[int], ends: Iterable[int], mark: str
    ) -> None:
        """Number the texts of `tokens`, which include their marks; `mark` is empty if the tokenizer has
        none."""
        self._tokens, self._mark = tokens, mark.encode()
        read = [self._without_marks(token) for token in tokens]
        for token in special:
            read[token] = b""
        self.texts = [b"", b"<end>"]
        numbers = {b"": NOTHING}
        for text in read:
            for each in (text, text.removeprefix(b" ")):
                if each not in numbers:
                    numbers[each] = len(self.texts)
                    self.texts.append(each)
        self.elsewhere: NDArray[np.intp] = np.array([numbers[text] for text in read])
        self.behind_mark: NDArray[np.intp] = np.array([numbers[text.removeprefix(b" ")] for text in read])
        self.elsewhere[list(ends)] = self.behind_mark[list(ends)] = END

    def end_behind(self, end: bytes, token: int) -> bytes:
        """Return the last bytes of an output after `token` is appended to it, as many as a mark (text that
        the decoder removes with a following space) is long.

        `end` are the output's last bytes before. Whether a mark stands there decides the text of the next
        token.
        """
        return (end + self._tokens[token])[-len(self._mark) :] if self._mark else b""

    def is_behind_mark(self, end: bytes) -> bool:
        """Return whether an output whose last bytes are `end` (from `end_behind`) ends with a mark, a text
        that the decoder removes with a following space.
        """
        return bool(self._mark) and end == self._mark

    def spelling_mark(self, end: bytes) -> list[int]:
        """Return the tokens that would complete a mark (a text that the decoder removes with a following
        space) if an output's last bytes `end` are its start.
        """
        size = len(self._mark)
        rests = tuple(self._mark[cut:] for cut in range(1, size) if end.endswith(self._mark[:cut]))
        return [token for token, text in enumerate(self._tokens) if text.startswith(rests)] if rests else []

    def _without_marks(self, token: bytes) -> bytes:
        return token.replace(self._mark + b" ", b"").replace(self._mark, b"") if self._mark else token


def mark_of(tokenizer_json: str) -> str:
    """Return a tokenizer's mark: a text that its decoder removes, together with a following space.

    "" if it has none. `tokenizer_json` is the content of the tokenizer's file tokenizer.json.
    """
    decoder = json.loads(tokenizer_json)["decoder"] or {}
    removed = [
        step["pattern"].get("String")
        for step in decoder.get("decoders", ())
        if step["type"] == "Replace" and step["content"] == ""
    ]
    return next((text for text in removed if text and f"{text} " in removed), "")
