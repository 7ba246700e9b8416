"""Measures the steps of a server that is used by nobody else, from outside.

A request for one token takes one step for its prompt. Several answers at once show the steps of so many
decodes.
All prompts differ from their first token on, so that no prefix is cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.emulate.load import SentRequest, ask_all
from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape

PROMPT_TOKENS = (16, 64, 128, 256, 512, 1024)
DECODES = (1, 2, 4, 8, 16)
CONTEXTS = (64, 400)
_REPEATS = 7
_DECODE_REPEATS = 2
_NEW_TOKENS = 48
_APART_S = 0.15
_FIRST_ID, _NUM_IDS = 300, 7000
"""Ids of ordinary tokens."""


def prompt_steps(url: str) -> list[MeasuredStep]:
    """Return the median seconds from a lone request for one token to its answer, by length of its prompt."""
    asked = [
        SentRequest(number * _APART_S, url, ids(f"{number}", length), 1, is_streamed=True)
        for number, length in enumerate(PROMPT_TOKENS * (1 + _REPEATS))
    ]
    ask_all(asked[: len(PROMPT_TOKENS)])  # the first requests of a server are slow
    answered = ask_all(asked[len(PROMPT_TOKENS) :])
    return [
        MeasuredStep(
            StepShape(1, length, length, length * (length + 1) // 2),
            median(one.first_s for one in answered[place :: len(PROMPT_TOKENS)]),
        )
        for place, length in enumerate(PROMPT_TOKENS)
    ]


def decode_steps(url: str) -> Iterator[MeasuredStep]:
    """Yield the median seconds of a token of answers that are written side by side."""
    for number in DECODES:
        for context in CONTEXTS:
            asked = [
                SentRequest(0.0, url, ids(f"{number}/{one}/{repeat}", context), _NEW_TOKENS, is_streamed=True)
                for repeat in range(_DECODE_REPEATS)
                for one in range(number)
            ]
            token_s = [
                (one.whole_s - one.first_s) / (_NEW_TOKENS - 1)
                for start in range(0, len(asked), number)
                for one in ask_all(asked[start : start + number])
            ]
            length = context + _NEW_TOKENS // 2
            shape = StepShape(num_decodes=number, context_tokens=number * length, max_context_tokens=length)
            yield MeasuredStep(shape, median(token_s))


def ids(name: str, length: int) -> tuple[int, ...]:
    """Return a prompt of made-up token ids, a function of the name."""
    start = int.from_bytes(name.encode(), "big") % _NUM_IDS
    return tuple(_FIRST_ID + (start + 31 * place * (place + start)) % _NUM_IDS for place in range(length))
