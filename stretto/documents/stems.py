"""Words without their common English endings, by which texts are compared."""

from __future__ import annotations

import re
from functools import lru_cache


def stems(text: str) -> list[str]:
    """Return the stems of the words of a text, in order; letters are made small."""
    return [_stem(word) for word in _WORD.findall(text.lower())]


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    """Remove common English endings from a word, so that "leads", "leading" and "lead" become equal."""
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + instead
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]  # "stopp"
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


_WORD = re.compile(r"[^\W_]+")
_ENDINGS = (
    *(("ies", "y"), ("sses", "ss"), ("ss", "ss"), ("us", "us"), ("is", "is")),
    *(("ing", ""), ("edly", ""), ("ed", ""), ("ly", ""), ("es", ""), ("s", "")),
)
STOP_STEMS = frozenset(
    stems(
        "what which who whom whose when where why how is are was were be been being do does did a an the of"
        " in on at to for from by with and or as it its that this these those there their his her he she they"
        " we i you not have has had can could will would may might must shall should many much some any about"
        " into than then also s t"
    )
)
"""Stems of words that say nothing of what a text is about: articles, pronouns, question words…"""
