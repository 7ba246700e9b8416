"""Estimates the tokens of texts without a tokenizer, never for limits; and makes texts to measure with."""

from __future__ import annotations

import itertools

_CHARS_PER_TOKEN = 4
_TEXT = (
    "the engine reads each document once and cuts it into pieces that a model can hold because a reader "
    "who asks a question wants the passage that answers it and not the whole book "
)


def num_tokens(text: str) -> int:
    """Return the estimated number of tokens of a text: one for every four characters, at least 1."""
    return len(text) // _CHARS_PER_TOKEN + 1


def text_of_words(num_words: int, seed: int) -> str:
    """Return a text of so many English words; texts with different seeds begin differently."""
    words = _TEXT.split()
    start = seed % len(words)
    return " ".join(itertools.islice(itertools.cycle(words), start, start + num_words))
