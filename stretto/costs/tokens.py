"""How many tokens a text has, where no tokenizer is at hand: for costs and budgets, never for limits."""

from __future__ import annotations

_CHARS_PER_TOKEN = 4


def num_tokens(text: str) -> int:
    """An estimate, at least 1: the usual four characters each."""
    return len(text) // _CHARS_PER_TOKEN + 1
