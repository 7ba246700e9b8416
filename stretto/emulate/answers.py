"""Answers of an emulated LLM: texts that depend on nothing but the model, the prompt and the answer's number.

So equal prompts get equal answers, from every replica of a model. A longer answer to a prompt begins with a
shorter one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from random import Random
from typing import Literal

from stretto.emulate.tokens import Piece, Tokens


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer of an emulated LLM.

    Attributes:
        ids: token ids.
        pieces: text that each token adds; an empty one where a token adds nothing before a stop string.
        finish: why it ends.
        stop_reason: the stop string or token that ended it.
    """

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    finish: Literal["stop", "length"]
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


def random_source(model: str, prompt: Sequence[int], number: int = 0) -> Random:
    """Return the source of random numbers for answer number `number` to a prompt of a model."""
    key = blake2b(array("Q", prompt).tobytes(), digest_size=16, key=model.encode()[:64])
    return Random(key.digest() + number.to_bytes(4, "big"))


def write_words(tokens: Tokens, source: Random, num_tokens: int, *, ends: bool) -> list[Piece]:
    """Return the pieces of a text of `num_tokens` made-up words, a token each.

    Args:
        ends: whether the last piece ends a sentence.
    """
    words = tokens.words
    even = num_tokens + num_tokens % 2  # the first of fewer bytes are the same only in whole words of 32 bits
    pieces = [words[place % len(words)] for place in array("H", source.randbytes(2 * even))[:num_tokens]]
    if ends and pieces:
        pieces[-1] = source.choice(tokens.last_words)
    return pieces


def ended_answer(
    pieces: Sequence[Piece],
    *,
    max_tokens: int,
    min_tokens: int = 0,
    stop: Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
) -> WrittenAnswer:
    """Return the answer that a model gives that would write `pieces` and then end.

    It is cut at `max_tokens`, and, behind `min_tokens`, at the first stop string or token.
    """
    finish: Literal["stop", "length"] = "length" if len(pieces) >= max_tokens else "stop"
    ids = [one for one, _ in pieces[:max_tokens]]
    texts = [text for _, text in pieces[:max_tokens]]
    found = _first_stop(texts, ids, min_tokens, stop, stop_tokens) if stop or stop_tokens else None
    if found is None:
        return WrittenAnswer(tuple(ids), tuple(texts), finish)
    num_tokens, num_chars, reason = found
    begins = [0, *accumulate(map(len, texts))]
    kept = [
        text[: max(0, num_chars - begin)] for text, begin in zip(texts, begins[:num_tokens], strict=False)
    ]
    return WrittenAnswer(tuple(ids[:num_tokens]), tuple(kept), "stop", reason)


def _first_stop(
    pieces: Sequence[str],
    ids: Sequence[int],
    min_tokens: int,
    stop: Sequence[str],
    stop_tokens: Sequence[int],
) -> tuple[int, int, str | int] | None:
    """Return where an answer stops first: number of tokens, number of characters, and what stops it."""
    found: list[tuple[int, int, str | int]] = []
    ends = list(accumulate(map(len, pieces)))
    text = "".join(pieces) if stop else ""
    first = ends[min_tokens - 1] if 0 < min_tokens <= len(ends) else 0
    for wanted in stop:
        start = text.find(wanted, max(0, first - len(wanted) + 1))
        if start >= 0:
            num_tokens = next(i for i, end in enumerate(ends, 1) if end >= start + len(wanted))
            found.append((num_tokens, start, wanted))
    for number, token in enumerate(ids if stop_tokens else ()):
        if token in stop_tokens and number >= min_tokens:
            found.append((number + 1, ends[number] - len(pieces[number]), token))
            break
    return min(found, key=lambda one: one[:2], default=None)
