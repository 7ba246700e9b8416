"""Measures the steps of a server that is used by nobody else, from outside.

A request for one token takes one step for its prompt. Several answers at once show the steps of so many
decodes. All prompts differ from their first token on, so that no prefix is cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from statistics import median

from benchmarks.emulate.load import SentRequest, ask_all, ask_in_turn
from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """Sizes of the measurement.

    Attributes:
        prompts: lengths of prompts, in tokens.
        decodes: numbers of answers at once.
        contexts: lengths of their prompts, in tokens.
        prompt_repeats, decode_repeats: how often each is measured.
        new_tokens: length of each answer, in tokens.
    """

    prompts: tuple[int, ...] = (16, 64, 128, 256, 512, 1024)
    decodes: tuple[int, ...] = (1, 2, 4, 8, 16)
    contexts: tuple[int, ...] = (64, 400)
    prompt_repeats: int = 7
    decode_repeats: int = 2
    new_tokens: int = 48


_FIRST_ID, _NUM_IDS = 300, 7000
"""Ids of ordinary tokens."""


def prompt_steps(url: str, size: ProbeSize) -> list[MeasuredStep]:
    """Return the median seconds from a lone request for one token to its answer, by length of its prompt."""
    asked = [
        SentRequest(0.0, url, ids(number, length), 1, is_streamed=True)
        for number, length in enumerate(size.prompts * (1 + size.prompt_repeats))
    ]
    ask_in_turn(asked[: len(size.prompts)])  # the first requests of a server are slow
    answered = ask_in_turn(asked[len(size.prompts) :])
    return [
        MeasuredStep(
            StepShape(1, length, length, length * (length + 1) // 2),
            median(one.first_s for one in answered[place :: len(size.prompts)]),
        )
        for place, length in enumerate(size.prompts)
    ]


def decode_steps(url: str, size: ProbeSize) -> Iterator[MeasuredStep]:
    """Yield the median seconds of a token of answers that are written side by side."""
    unused = count(len(size.prompts) * (1 + size.prompt_repeats))
    for number in size.decodes:
        for context in size.contexts:
            asked = [
                SentRequest(0.0, url, ids(next(unused), context), size.new_tokens, is_streamed=True)
                for _ in range(size.decode_repeats * number)
            ]
            token_s = [
                (one.whole_s - one.first_s) / (size.new_tokens - 1)
                for start in range(0, len(asked), number)
                for one in ask_all(asked[start : start + number])
            ]
            length = context + size.new_tokens // 2
            shape = StepShape(num_decodes=number, context_tokens=number * length, max_context_tokens=length)
            yield MeasuredStep(shape, median(token_s))


def ids(number: int, length: int) -> tuple[int, ...]:
    """Return a prompt of made-up token ids. Prompts of different numbers below 7000 begin differently."""
    start = 97 * number % _NUM_IDS
    return tuple(_FIRST_ID + (start + 31 * place * (place + start)) % _NUM_IDS for place in range(length))
