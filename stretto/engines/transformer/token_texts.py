"""What each token adds to the decoded text, in bytes: a structure is followed in what is read in the end.

A tokenizer may have a mark that its decoder takes out again, with the space behind it: so a word has the same
token behind a bracket or a quote, where no space is, as in a sentence. A token then has two texts: one behind
a mark, without its leading space, and one elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

NOTHING, END = 0, 1


class TokenTexts:
    """The different texts of a vocabulary, numbered: `"` with a mark behind it and without one share theirs.

    Attributes:
        texts: by number, perhaps parts of characters; NOTHING of tokens that add none or are not to be
            generated, END of the ends of sequence.
        elsewhere: by token the number of its text, (V,).
        behind_mark: the same behind a mark.
    """

    def __init__(
        self, tokens: Sequence[bytes], special: Iterable[int], ends: Iterable[int], mark: str
    ) -> None:
        """`tokens` are with their marks; `mark` is empty if the tokenizer has none."""
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
        """The last bytes of a text, as long as a mark, when `token` has followed those in `end`."""
        return (end + self._tokens[token])[-len(self._mark) :] if self._mark else b""

    def is_behind_mark(self, end: bytes) -> bool:
        """Whether a text that ends so ends with a mark."""
        return bool(self._mark) and end == self._mark

    def spelling_mark(self, end: bytes) -> list[int]:
        """Tokens that would complete the mark, if a text that ends so has begun one."""
        size = len(self._mark)
        rests = tuple(self._mark[cut:] for cut in range(1, size) if end.endswith(self._mark[:cut]))
        return [token for token, text in enumerate(self._tokens) if text.startswith(rests)] if rests else []

    def _without_marks(self, token: bytes) -> bytes:
        return token.replace(self._mark + b" ", b"").replace(self._mark, b"") if self._mark else token


def mark_of(tokenizer_json: str) -> str:
    """What the tokenizer's decoder takes out, by itself and with a space behind it; empty for none."""
    decoder = json.loads(tokenizer_json)["decoder"] or {}
    removed = [
        step["pattern"].get("String")
        for step in decoder.get("decoders", ())
        if step["type"] == "Replace" and step["content"] == ""
    ]
    return next((text for text in removed if text and f"{text} " in removed), "")
