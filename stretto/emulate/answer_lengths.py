"""How long answers are whose requests leave that to the model: drawn from counts, or as recorded.

A file is JSON. A distribution has counts by length, as `{"120": 3, "250": 1}`. A recording is a list of
objects with a `prompt` (a text or token ids) and `output_tokens`; other prompts draw from its lengths.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.costs.output_lengths import OutputLengths, output_lengths
from stretto.emulate.answers import random_source
from stretto.emulate.prepared import AnswerTokens, as_long_as_allowed
from stretto.emulate.tokens import FOUR_CHARACTERS, Tokens
from stretto.model.errors import ConfigError
from stretto.model.wording import why_unreadable


def read_answer_tokens(path: Path | None, tokens: Tokens = FOUR_CHARACTERS) -> AnswerTokens:
    """Return the function that decides lengths, from a file; without one, answers are as long as allowed.

    Raises:
        ConfigError: the file cannot be read or has another form.
    """
    if path is None:
        return as_long_as_allowed
    try:
        found = json.loads(path.read_text("utf-8"))
        recorded = {_key(row["prompt"], tokens): _length(row["output_tokens"]) for row in _rows(found)}
        counts = Counter(recorded.values()) if recorded else _counts(found)
        return RecordedLengths(recorded, output_lengths(counts))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--output-lengths {path}: neither counts by length nor a recording: {why_unreadable(error)}"
        ) from error


@dataclass(frozen=True, slots=True)
class RecordedLengths:
    """Lengths of answers: recorded ones for recorded prompts, drawn ones for others.

    A draw depends on nothing but the prompt.

    Attributes:
        recorded: number of tokens of each recorded answer, by the token ids of its prompt.
        others: distribution of the other lengths.
    """

    recorded: Mapping[tuple[int, ...], int]
    others: OutputLengths

    def __call__(self, prompt: Sequence[int], max_tokens: int) -> int:
        """Return the number of tokens of the answer to a prompt, at most `max_tokens`."""
        known = self.recorded.get(tuple(prompt))
        if known is None:
            return self.others.draw(random_source("length", prompt), limit=max_tokens)
        return min(known, max_tokens)


def _rows(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _counts(found: Any) -> dict[int, float]:
    return {int(length): float(count) for length, count in found.items()}


def _key(prompt: Any, tokens: Tokens) -> tuple[int, ...]:
    return tuple(tokens.encode(prompt)) if isinstance(prompt, str) else tuple(map(int, prompt))


def _length(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"output_tokens is {value!r}; it must be a whole number of at least 1")
    return value
