"""What is believed about the answers that decide what a query asks next: their texts, or widths of lists.

A distribution is declared with the app, or follows from it (the words of a JSON schema, the word that a
condition looks for), and is refined by the answers of runs, as the lengths of answers are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from stretto.graph.control_ops import begins_with_word
from stretto.model.tasks import Decode

Origin = Literal["declared", "schema", "assumed", "learned"]
_WORTH: Mapping[Origin, float] = {"declared": 100.0, "schema": 5.0, "assumed": 5.0, "learned": 0.0}
"""Number of a step's own answers that a distribution counts for."""
OTHER = "-"
"""Answer that begins with no word."""


@dataclass(frozen=True)
class AnswerBelief:
    """The distribution of a step's answers: texts, or numbers of items of a list, with weights.

    Attributes:
        learned: number of the step's own answers that count in it.
    """

    weights: Mapping[str, float]
    origin: Origin
    learned: int = 0

    def updated(self, found: Mapping[str, int]) -> AnswerBelief:
        """Return what is believed after some answers of the step."""
        total = sum(self.weights.values())
        weights = {text: _WORTH[self.origin] * weight / total for text, weight in self.weights.items()}
        for text, count in found.items():
            key = next((one for one in weights if _is_like(text, one)), OTHER if OTHER in weights else text)
            weights[key] = weights.get(key, 0.0) + count
        return AnswerBelief(weights, self.origin, sum(found.values()))

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """The probability of each answer."""
        total = sum(self.weights.values())
        return {text: weight / total for text, weight in self.weights.items()}

    def possible(self, random: np.random.Generator) -> AnswerBelief:
        """Draw a distribution that may be the true one; a declared one without answers is taken as it is."""
        if self.origin == "declared" and not self.learned:
            return self
        worth = _WORTH[self.origin] + self.learned
        drawn = random.standard_gamma([share * worth for share in self.shares.values()])
        if not drawn.sum() > 0:
            return self
        return AnswerBelief(dict(zip(self.weights, drawn.tolist(), strict=True)), self.origin, self.learned)

    def draw(self, random: np.random.Generator, number: int) -> list[str]:
        """Draw answers."""
        texts = list(self.shares)
        places = random.choice(len(texts), number, p=list(self.shares.values()))
        return [texts[place] for place in places.tolist()]

    @property
    def words(self) -> str:
        """The distribution in words, and where it comes from."""
        parts = [f"{text[:30]!r} {share:.0%}" for text, share in self.shares.items()]
        names = {
            "declared": "declared",
            "schema": "assumed by its form",
            "assumed": "assumed",
            "learned": "learned",
        }
        learned = f", with {self.learned} answers" if self.learned else ""
        return f"{', '.join(parts)} ({names[self.origin]}{learned})"


def _is_like(text: str, word: str) -> bool:
    """Return whether an answer says a word, as a condition of an app understands it."""
    wanted = word.strip("\"'")
    if not wanted or word == OTHER:
        return text == word
    return begins_with_word(text, wanted)


def of_form(decode: Decode) -> AnswerBelief | None:
    """Return the distribution over choices, or over the values of a schema that lists them; None for other
    answers.
    """
    if decode.choices:
        return AnswerBelief(dict.fromkeys(decode.choices, 1.0), "schema")
    if decode.json_schema is None or decode.items is not None:
        return None
    try:
        schema: Any = json.loads(decode.json_schema)
    except ValueError:
        return None
    values = schema.get("enum") if isinstance(schema, dict) else None
    if not isinstance(values, list) or not values:
        return None
    return AnswerBelief({json.dumps(value): 1.0 for value in values}, "schema")


def of_word(word: str) -> AnswerBelief:
    """Return the distribution of answers that a condition compares with a word."""
    return AnswerBelief({word: 1.0, OTHER: 1.0}, "assumed")
