"""The parts of the time of one request, and what they add up to along a program's critical path.

What lies between a request's sending and its first event is the prefill and a wait at the worker, which tells
neither. The prefill is estimated from the tokens that were computed, at the rate at which the quicker of the
latest prompts of the model were. Where an answer comes as a whole, its decoding is estimated in the same way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

from stretto.sched.request_trace import RequestTrace

_NUM_SAMPLES = 64
_EVERY = 8
"""Answers after which a rate is taken anew."""
_LEAST_TOKENS = 64
"""Tokens from which on a prompt tells a rate."""
_QUICK = 0.25
"""Share of the samples that are quicker than the estimate."""


class Parts(NamedTuple):
    """Seconds of a program or of a request, by what they were spent on. Their sum is the wall time.

    Attributes:
        client: time when nothing of the program was at the door: its client was busy, perhaps with a tool.
        held: time without room for the program in KV memory.
        queue: wait for a turn, at the door or at an engine.
        retries: time at workers that failed, or that were slower than a second attempt.
        worker_queue: wait at the worker.
        prefill: computation of the parts of prompts that were not cached.
        decode: generation of the answer.
        tool: time in steps of an app that are no LLM: search, embedding, tools.
        network: wait for the client to take what had come.
    """

    client: float = 0.0
    held: float = 0.0
    queue: float = 0.0
    retries: float = 0.0
    worker_queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    tool: float = 0.0
    network: float = 0.0

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(self)

    def plus(self, other: Parts) -> Parts:
        """Return the sums of two, part by part."""
        return Parts._make(map(add, self, other))

    def to_json(self) -> dict[str, float]:
        """Return the parts that are not nothing, as JSON."""
        parts = zip(NAMES, self, strict=True)
        return {name: int(1e6 * value + 0.5) / 1e6 for name, value in parts if value > 5e-7}


NAMES = Parts._fields
NOTHING = Parts()


class Rate:
    """Seconds of a token as the quicker of the latest samples had them."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._since = 0
        self.token_s = 0.0

    def learn(self, seconds: float, num_tokens: int) -> None:
        """Take a sample: so many seconds for so many tokens."""
        self._samples.append(max(0.0, seconds) / num_tokens)
        self._since += 1
        if self._since >= _EVERY or len(self._samples) <= _EVERY:
            self._since = 0
            self.token_s = sorted(self._samples)[int(_QUICK * len(self._samples))]


@dataclass(slots=True)
class ModelRates:
    """What is known of a model: seconds of a token that is filled in, and of one that is generated."""

    prefill: Rate
    decode: Rate

    @classmethod
    def unknown(cls) -> ModelRates:
        """Return the rates of a model of which nothing is known."""
        return cls(Rate(), Rate())

    def learn(self, trace: RequestTrace, num_computed: int) -> None:
        """Learn from an answer that came as a stream, of whose prompt so many tokens were computed."""
        if trace.first_token_s is None or trace.ended_s is None:
            return
        if num_computed >= _LEAST_TOKENS:
            self.prefill.learn(trace.first_token_s - trace.computing.at_s, num_computed)
        if (num_output := trace.output_tokens or 0) > 1:
            self.decode.learn(trace.ended_s - trace.first_token_s - trace.paused_s, num_output - 1)


def computed_tokens(trace: RequestTrace) -> int:
    """Return how many tokens of the prompt were computed: counted by the worker, or else estimated."""
    num_prompt = trace.estimated_tokens if trace.prompt_tokens is None else trace.prompt_tokens
    num_cached = trace.predicted_cached if trace.cached_tokens is None else trace.cached_tokens
    return max(0, num_prompt - num_cached)


def request_parts(
    trace: RequestTrace,
    rates: ModelRates,
    num_computed: int,
    begun_s: float,
    ended_s: float,
    *,
    client_s: float = 0.0,
    is_llm: bool = True,
) -> Parts:
    """Return the parts of a request that has ended. Their sum is the time from `begun_s` to `ended_s`, and
    `client_s`, for which nothing of the program was at the door before.

    Args:
        num_computed: tokens of its prompt that were not cached.
        is_llm: whether it was asked of an LLM.
    """
    if not trace.tries:
        return Parts(client=client_s, queue=ended_s - begun_s)
    first, last = trace.tries[0], trace.computing
    first_sent_s = min(ended_s, max(begun_s, first.at_s))
    sent_s = min(ended_s, max(begun_s, last.at_s))
    held_s = min(first.held_s, first_sent_s - begun_s)
    queue_s, retries_s, left_s = first_sent_s - begun_s - held_s, sent_s - first_sent_s, ended_s - sent_s
    if not is_llm:
        return Parts(client_s, held_s, queue_s, retries_s, tool=left_s)
    network_s = min(trace.paused_s, left_s)
    left_s -= network_s
    prefill_s = rates.prefill.token_s * num_computed
    if (first_token_s := trace.first_token_s) is not None:
        decode_s = min(left_s, max(0.0, ended_s - max(sent_s, first_token_s) - network_s))
        before_s = left_s - decode_s
        prefill_s = min(before_s, prefill_s) if prefill_s else before_s
    else:
        prefill_s = min(left_s, prefill_s)
        decode_s = left_s - prefill_s
        if rates.decode.token_s and trace.output_tokens:
            decode_s = min(decode_s, rates.decode.token_s * trace.output_tokens)
    rest_s = left_s - prefill_s - decode_s
    return Parts(client_s, held_s, queue_s, retries_s, rest_s, prefill_s, decode_s, 0.0, network_s)
