"""The measurement of an LLM server over its API, and the profile that explains it.

Requests for one token, with prompts of several lengths, give the time until the first token. Longer answers,
alone and side by side, give the time of the further ones. Every prompt begins with words of its own, so that
no prefix cache helps, nor does an earlier measurement.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stretto.costs.fit_profile import fit_profile
from stretto.costs.mean_output import num_tokens
from stretto.engines.contract import AsyncLLM
from stretto.engines.measurement import Measurement
from stretto.graph.op_workloads import text_of_words
from stretto.model.errors import BadReply
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece
from stretto.model.values import Segment

_ROUNDS = 5
_PROMPT_WORDS = (32, 128, 512)
_DECODE_WORDS = 32
_OUTPUT_TOKENS = 32
_SIDE_BY_SIDE = 4


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request: tokens of its prompt and its answer, seconds until its first token and its end."""

    num_prompt: int
    num_output: int
    first_s: float
    total_s: float

    @property
    def token_s(self) -> float | None:
        """Seconds of a token after the first; None if there was none."""
        return (self.total_s - self.first_s) / (self.num_output - 1) if self.num_output > 1 else None


async def profile_server(
    replica: Replica, on_measurement: Callable[[Measurement], None]
) -> tuple[list[Measurement], Profile]:
    """Measure a server's first and further tokens; return the measurements, and the profile fitted to them.

    A server that refuses completions is asked to chat. Times of further tokens are 0 if its answers have one
    token only.

    Raises:
        EngineFailure: the server cannot be reached, or refuses.
    """
    engine = await _answering(replica)
    try:
        measurements = []
        for num_words in _PROMPT_WORDS:
            answers = [(await _answers(engine, [num_words], 1))[0] for _ in range(_ROUNDS)]
            seconds = [answer.first_s for answer in answers]
            units = max(num_words, *(answer.num_prompt for answer in answers))
            measurement = Measurement(units, statistics.median(seconds), min(seconds), max(seconds))
            measurements.append(measurement)
            on_measurement(measurement)
        fitted = fit_profile([m.units for m in measurements], [m.median_s for m in measurements])
        alone_s = await _token_s(engine, 1)
        together_s = await _token_s(engine, _SIDE_BY_SIDE)
    finally:
        await engine.aclose()
    neighbour_s = max(0.0, together_s - alone_s) / (_SIDE_BY_SIDE - 1)
    return measurements, replace(
        fitted, max_efficient_batch=1, per_output_s=alone_s, per_neighbour_s=neighbour_s
    )


async def _answering(replica: Replica) -> AsyncLLM:
    """Return the engine of a replica, started, once its server has answered."""
    engine: AsyncLLM = replica.executable(replica.instance_config())
    try:
        await engine.start()
        await _answers(engine, [_DECODE_WORDS], 1)
    except BaseException:
        await engine.aclose()
        raise
    return engine


async def _token_s(engine: AsyncLLM, num_requests: int) -> float:
    """Return the median seconds of a token after the first, with so many requests at once."""
    seconds = [
        answer.token_s
        for _ in range(_ROUNDS)
        for answer in await _answers(engine, [_DECODE_WORDS] * num_requests, _OUTPUT_TOKENS)
    ]
    known = [token_s for token_s in seconds if token_s is not None]
    return statistics.median(known) if known else 0.0


async def _answers(engine: AsyncLLM, prompts_words: Sequence[int], max_tokens: int) -> list[_Answer]:
    """Send prompts of so many words at once; return the measured answers."""
    asked = [_answer(engine, number, words, max_tokens) for number, words in enumerate(prompts_words)]
    return list(await asyncio.gather(*asked))


async def _answer(engine: AsyncLLM, number: int, num_words: int, max_tokens: int) -> _Answer:
    text = f"{uuid.uuid4().hex} {text_of_words(num_words, number)}"
    decode = Decode(max_tokens=max_tokens)
    times_s: list[float] = []
    ended: list[Done] = []

    def emit(event: LLMEvent) -> None:
        match event:
            case Piece():
                times_s.append(time.perf_counter())
            case Done():
                times_s.append(time.perf_counter())
                ended.append(event)
            case Failed():
                raise event.error

    task = LLMTask(next(_IDS), "profile", "profile", (Segment(text),), decode)
    start_s = time.perf_counter()
    await engine.generate(task, emit)
    if not ended:
        raise BadReply("the engine ended without an answer")
    usage = ended[0].usage
    num_prompt = usage.num_prompt_tokens or num_tokens(text)
    return _Answer(num_prompt, usage.num_output_tokens, times_s[0] - start_s, times_s[-1] - start_s)


_IDS = itertools.count()
