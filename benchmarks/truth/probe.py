"""Measures the steps of a server that nobody else uses, from outside, while it answers several requests.

The time between two tokens of an answer is that of a step. Several answers at once show the steps of so many
decodes. A prompt that is sent beside them joins one of their steps, so the time between their tokens shows
what a step with that prompt takes:

    answers    token    token    token             token    token
    steps      | decode | decode | decode + prompt | decode |
    prompt            sent .......                 first token
    waits             ^^^^^^^^^^^                             for the way to the engine, and for a step's end

The mean wait is half a step, as prompts are sent at any time of a step, and the time of a request's way to
the server's engine and back. All prompts differ from their first token on, so that no prefix is cached.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import fmean, median

from benchmarks.emulate.load import Answered, SentRequest, ask_all, ask_beside
from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape
from stretto.model.errors import EngineFailure


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """Sizes of the measurement.

    Attributes:
        decodes: numbers of answers at once.
        contexts: lengths of their prompts, in tokens.
        decode_repeats: how often each is measured.
        new_tokens: length of each answer, in tokens.
        beside: numbers of answers beside which prompts are sent.
        prompts: lengths of these prompts, in tokens.
        prompt_repeats: how often each is sent beside each number of answers.
        beside_tokens: length of each of these answers, in tokens: long enough for all prompts.
    """

    decodes: tuple[int, ...] = (1, 2, 4, 8, 16)
    contexts: tuple[int, ...] = (64, 400)
    decode_repeats: int = 1
    new_tokens: int = 48
    beside: tuple[int, ...] = (1, 2, 4, 8, 14)
    prompts: tuple[int, ...] = (16, 64, 128, 256, 512)
    prompt_repeats: int = 3
    beside_tokens: int = 130


@dataclass(frozen=True, slots=True)
class JoinedPrompt:
    """A prompt that has joined the steps of running answers.

    Attributes:
        step: the step that it has joined.
        waited_s: seconds from its sending to the begin of that step.
        before_s: seconds of the step before.
    """

    step: MeasuredStep
    waited_s: float
    before_s: float


@dataclass(frozen=True, slots=True)
class Probed:
    """What was measured of a server.

    Attributes:
        decodes: steps of answers alone, the mean of each shape.
        joined: prompts beside answers.
    """

    decodes: Sequence[MeasuredStep]
    joined: Sequence[JoinedPrompt]

    @property
    def prompts(self) -> list[MeasuredStep]:
        """The mean step of each length of prompt beside each number of answers."""
        groups: dict[tuple[int, int], list[MeasuredStep]] = {}
        for one in self.joined:
            shape = one.step.shape
            groups.setdefault((shape.num_decodes, shape.prefill_tokens), []).append(one.step)
        return [
            MeasuredStep(steps[len(steps) // 2].shape, fmean(one.seconds for one in steps))
            for steps in groups.values()
        ]

    @property
    def arrival_s(self) -> float:
        """Seconds from a request's sending to its place in the engine's queue, and from the engine to the
        client.
        """
        return fmean(one.waited_s - one.before_s / 2 for one in self.joined)


_FIRST_ID, _NUM_IDS = 300, 7000
"""Ids of ordinary tokens."""
_CONTEXT = 64
_PAUSES_S = (0.02, 0.05)
"""Shortest pause before a prompt, and the width of the range of pauses, in seconds."""
_SPREAD = 0.6180339887
"""Multiples of this number, modulo 1, are spread evenly."""


def probe(url: str, size: ProbeSize) -> Probed:
    """Measure a server.

    Raises:
        EngineFailure: it refused a request, or no prompt was answered while all answers beside it ran.
    """
    unused = count()
    warm = [SentRequest(0.0, url, ids(next(unused), length), 4, is_streamed=True) for length in size.prompts]
    ask_all(warm)  # the first requests of a server are slow
    decodes = list(_decode_steps(url, size, unused))
    joined = [one for num in size.beside for one in _joined(url, size, num, unused)]
    if not joined:
        raise EngineFailure(
            f"{url}: no prompt was answered beside answers of {size.beside_tokens} tokens; they need more"
        )
    return Probed(decodes, joined)


def pooled(several: Sequence[Probed]) -> Probed:
    """Return what several measurements of one server have found together."""
    groups: dict[StepShape, list[float]] = {}
    for step in (step for one in several for step in one.decodes):
        groups.setdefault(step.shape, []).append(step.seconds)
    decodes = [MeasuredStep(shape, fmean(seconds)) for shape, seconds in groups.items()]
    return Probed(decodes, [joined for one in several for joined in one.joined])


def _decode_steps(url: str, size: ProbeSize, unused: Iterator[int]) -> Iterator[MeasuredStep]:
    """Yield the mean seconds of a token of answers that are written side by side."""
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
            yield MeasuredStep(shape, fmean(token_s))


def _joined(url: str, size: ProbeSize, num_answers: int, unused: Iterator[int]) -> Iterator[JoinedPrompt]:
    """Yield prompts that have joined the steps of `num_answers` answers."""
    streams = [
        SentRequest(0.0, url, ids(next(unused), _CONTEXT), size.beside_tokens, is_streamed=True)
        for _ in range(num_answers)
    ]
    shortest_s, width_s = _PAUSES_S
    lengths = size.prompts * size.prompt_repeats
    prompts = [
        SentRequest(
            shortest_s + width_s * (place * _SPREAD % 1), url, ids(next(unused), length), 1, is_streamed=True
        )
        for place, length in enumerate(lengths)
    ]
    answers, firsts = ask_beside(streams, prompts)
    for length, first in zip(lengths, firsts, strict=True):
        if joined := join(length, first, answers):
            yield joined


def join(length: int, prompt: Answered, answers: Sequence[Answered]) -> JoinedPrompt | None:
    """Return how a prompt of `length` tokens joined the steps of running answers.

    Returns:
        None if an answer had ended, or had only just begun.
    """
    ends: list[tuple[float, float, float]] = []
    context = max_context = 0
    for answer in answers:
        ended_s = [answer.begun_s + one for one in answer.chunk_s]
        at_s = prompt.begun_s + prompt.first_s
        place = bisect_left(ended_s, at_s)
        if 0 < place < len(ended_s) and at_s - ended_s[place - 1] < ended_s[place] - at_s:
            place -= 1
        if not 2 <= place < len(ended_s) - 1:
            return None
        ends.append((ended_s[place - 2], ended_s[place - 1], ended_s[place]))
        context += _CONTEXT + place
        max_context = max(max_context, _CONTEXT + place)
    pairs = length * (length + 1) // 2
    shape = StepShape(1, length, length, pairs, len(answers), context, max_context)
    return JoinedPrompt(
        MeasuredStep(shape, median(end_s - begin_s for _, begin_s, end_s in ends)),
        median(begin_s for _, begin_s, _ in ends) - prompt.begun_s,
        median(begin_s - before_s for before_s, begin_s, _ in ends),
    )


def ids(number: int, length: int) -> tuple[int, ...]:
    """Return a prompt of made-up token ids. Prompts of different numbers below 7000 begin differently."""
    start = 97 * number % _NUM_IDS
    return tuple(_FIRST_ID + (start + 31 * place * (place + start)) % _NUM_IDS for place in range(length))
