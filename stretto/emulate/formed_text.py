"""The texts of answers that must have a form: a JSON schema, a choice, a regular expression, a list.

A prompt that asks for "a JSON list" or "a JSON array" in words gets one too, of strings; it has as many as
the last number before these words says, or three.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

from stretto.emulate.documents import document_of, random_words
from stretto.emulate.matching_text import text_matching
from stretto.wire.errors import unacceptable
from stretto.wire.output_form import OutputForm

_ASKED = re.compile(r"json (?:list|array)", re.IGNORECASE)
_NUMBER = re.compile(r"\b([1-9]|1\d|20)\b")
_LOOKED_AT = 1000
"""Number of characters at the end of a prompt in which a list may be asked for."""
_WORDS = (6, 3, 1)
"""Numbers of words of each text of a document: fewer, if the document would be too long."""
_UNUSABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors that a form of which no text can be made leads to."""


def formed_text(form: OutputForm, source: Random, fits: Callable[[str], bool]) -> str:
    """Return a text that has a form.

    Args:
        fits: whether a text is short enough. If none is, the shortest is returned, and the answer is cut.

    Raises:
        RequestRefused: no such text can be made up.
    """
    try:
        match form.kind:
            case "json":
                return _fitting(lambda words: document_of(form.value, source, words), fits)
            case "json_object":
                return _fitting(lambda words: {"answer": random_words(source, words)}, fits)
            case "choice":
                return str(source.choice(form.value))
            case "regex":
                return text_matching(form.value, source)
            case _:
                raise ValueError("an emulated server writes no texts of a grammar")
    except _UNUSABLE as error:
        raise unacceptable(
            "structured_outputs", f"No text has the form that is asked for: {error}."
        ) from error


def list_asked_for(prompt: str) -> int | None:
    """Return how many strings a prompt asks for that wants a JSON list; None if it wants none."""
    tail = prompt[-_LOOKED_AT:]
    asked = list(_ASKED.finditer(tail))
    if not asked:
        return None
    numbers = _NUMBER.findall(tail[: asked[-1].start()])
    return int(numbers[-1]) if numbers else 3


def list_text(number: int, source: Random, fits: Callable[[str], bool]) -> str:
    """Return a JSON list of made-up strings, short enough to fit if that is possible."""
    return _fitting(lambda words: [random_words(source, words) for _ in range(number)], fits)


def _fitting(make: Callable[[int], Any], fits: Callable[[str], bool]) -> str:
    text = ""
    for num_words in _WORDS:
        text = json.dumps(make(num_words))
        if fits(text):
            break
    return text
