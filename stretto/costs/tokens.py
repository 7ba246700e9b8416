"""Estimates the tokens of a text without a tokenizer: for costs and budgets, never for limits."""

from __future__ import annotations

_CHARS_PER_TOKEN = 4


def num_tokens(text: str) -> int:
    """Return the estimated number of tokens of a text: one for every four characters, at least 1."""
    return len(text) // _CHARS_PER_TOKEN + 1
