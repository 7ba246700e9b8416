"""The parts of the time of one request, and what they add up to along a program's critical path.

What lies between a request's sending and its first event is the prefill and a wait at the worker, which tells
neither. The prefill is estimated from the tokens that were computed, at the rate at which the quicker of the
latest prompts of the model were. Where an answer comes as a whole, its decoding is estimated in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields

from stretto.sched.request_trace import RequestTrace

_NUM_SAMPLES = 64
_EVERY = 8
"""Answers after which a rate is taken anew."""
_LEAST_TOKENS = 64
"""Tokens from which on a prompt tells a rate."""
_QUICK = 0.25
"""Share of the samples that are quicker than the estimate."""


@dataclass(slots=True)
class Parts:
    """Seconds of a program or of a request, by what they were spent on. Their sum is the wall time.

    Attributes:
        client: nothing of the program was at the door: its client was busy, with a tool for example.
        held: held, because the program had no room in KV memory.
        queue: waiting for a turn, at the door or at an engine.
        retries: at workers that failed, or that were slower than a second attempt.
        worker_queue: waiting at the worker.
        prefill: computing the parts of prompts that were not cached.
        decode: generating the answer.
        tool: in steps of an app that are no LLM: search, embedding, tools.
        network: waiting for the client to take what had come, or to send all of its request.
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
        return sum(getattr(self, name) for name in NAMES)

    def plus(self, other: Parts) -> Parts:
        """Return the sums of two, part by part."""
        return Parts(*(getattr(self, name) + getattr(other, name) for name in NAMES))

    def to_json(self) -> Mapping[str, float]:
        """Return the parts that are not nothing, as JSON."""
        return {name: round(value, 6) for name in NAMES if (value := getattr(self, name)) > 5e-7}


NAMES = tuple(one.name for one in fields(Parts))


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
            self.prefill.learn(trace.first_token_s - trace.tries[-1].at_s, num_computed)
        if (num_output := trace.output_tokens or 0) > 1:
            self.decode.learn(trace.ended_s - trace.first_token_s - trace.paused_s, num_output - 1)


def computed_tokens(trace: RequestTrace) -> int:
    """Return how many tokens of the prompt were computed: counted by the worker, or else estimated."""
    num_prompt = trace.estimated_tokens if trace.prompt_tokens is None else trace.prompt_tokens
    num_cached = trace.predicted_cached if trace.cached_tokens is None else trace.cached_tokens
    return max(0, num_prompt - num_cached)


def parts_of(
    trace: RequestTrace, rates: ModelRates, begun_s: float, ended_s: float, *, is_llm: bool = True
) -> Parts:
    """Return the parts of a request that has ended. Their sum is the time from `begun_s` to `ended_s`.

    Args:
        is_llm: whether it was asked of an LLM.
    """
    parts = Parts()
    if not trace.tries:
        parts.queue = ended_s - begun_s
        return parts
    first, last = trace.tries[0], trace.tries[-1]
    first_sent_s = min(ended_s, max(begun_s, first.at_s))
    sent_s = min(ended_s, max(begun_s, last.at_s))
    parts.held = min(first.held_s, first_sent_s - begun_s)
    parts.queue = first_sent_s - begun_s - parts.held
    parts.retries = sent_s - first_sent_s
    left_s = ended_s - sent_s
    if not is_llm:
        parts.tool = left_s
        return parts
    parts.network = min(trace.paused_s, left_s)
    left_s -= parts.network
    prefill_s = rates.prefill.token_s * computed_tokens(trace)
    if trace.first_token_s is not None:
        streamed_s = ended_s - max(sent_s, trace.first_token_s) - parts.network
        parts.decode = min(left_s, max(0.0, streamed_s))
        before_s = left_s - parts.decode
        parts.prefill = min(before_s, prefill_s) if prefill_s else before_s
        parts.worker_queue = before_s - parts.prefill
        return parts
    parts.prefill = min(left_s, prefill_s)
    parts.decode = left_s - parts.prefill
    if rates.decode.token_s and trace.output_tokens:
        parts.decode = min(parts.decode, rates.decode.token_s * trace.output_tokens)
        parts.worker_queue = left_s - parts.prefill - parts.decode
    return parts
