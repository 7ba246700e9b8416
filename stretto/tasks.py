"""What schedulers hand to engines, and what LLM engines answer.

Plain immutable messages, below everything that decides or runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stretto.core import Prompt
from stretto.errors import StrettoError


@dataclass(frozen=True, slots=True)
class Task:
    """One primitive's share of a batch.

    With `num_items` None it is a single application and `inputs` maps ports to values. Otherwise the
    ports in `each` hold lists of that length, the other ports hold values that broadcast, and the
    answer is a list of that length.
    """

    id: int
    query: str
    step: str
    op: str
    inputs: Mapping[str, object]
    config: Mapping[str, object]
    num_items: int | None = None
    each: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decode:
    """How a completion is decoded.

    Attributes:
        max_tokens: upper bound of generated tokens.
        items: None for text; "json_list" for a `splittable` decode, whose value is the parsed list of
            strings and which stops at the end of its JSON.
        max_items: stop after that many items ("json_list" only).
        stop: stop strings; the text ends before the first of them.
        temperature: 0 is greedy.
        seed: of the sampler, when temperature > 0.
        top_p: sample from the most likely tokens that make up this share of the probability.
        top_k: sample from the k most likely tokens; 0 for all.
        min_p: sample from tokens at least so likely, relative to the likeliest.
        repetition_penalty: divides the positive logits of tokens of the prompt and the output so far, and
            multiplies the negative ones.
        presence_penalty: taken off the logits of tokens that are in the output.
        frequency_penalty: taken off as often as they are in the output.
        min_tokens: neither an end of sequence nor a stop token before so many.
        stop_tokens: ids that end the output and are not part of it.
        ignore_eos: the end of sequence is a token like any other.
        json_schema: of what the output has to be, as text; needs the package llguidance.
        regex: that the whole output has to match; likewise.
        logprobs: report the chosen token's log-probability and those of so many of the likeliest.
    """

    max_tokens: int = 128
    items: str | None = None
    max_items: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    json_schema: str | None = None
    regex: str | None = None


Objective: TypeAlias = Literal["latency", "throughput"]
"""What a query asks of the instances that serve it: few sequences beside its own, or as many as there is
room for. Source: Parrot §5.4."""


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """What holds for all requests of a query.

    Attributes:
        tenant: owner of the query. Caches are never shared between tenants.
        criteria: what the query asks of the instances that serve it.
        deadline_s: point in the driver's time when the query ends, if it has not ended by then.
    """

    tenant: str = ""
    criteria: Objective = "throughput"
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class LLMTask:
    """A prompt to prefill, and to complete unless `decode` is None.

    The prompt is always the whole prompt so far: what an earlier task left in the cache saves time and
    is never relied on. A task without `decode` answers `Done` with None when its prefix is held.

    Attributes:
        tenant: for whom: what the task of one leaves in a cache, no other's ever finds.
        objective: what the query asks of the instances that serve it.
        generated: tokens that it had generated when it was suspended elsewhere. They count for its limits,
            and the pieces that they make are delivered again.
    """

    id: int
    query: str
    step: str
    prompt: Prompt
    decode: Decode | None
    tenant: str = ""
    objective: Objective = "throughput"
    generated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one finished LLM task."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The task has left the instance's queue: its prefill begins."""

    task: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a task's output as soon as it exists: a text delta, or one complete list item."""

    task: int
    value: str


@dataclass(frozen=True, slots=True)
class Done:
    """The task's whole value: str, list[str] with `items`, or None for a prefill."""

    task: int
    value: object
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Failed:
    """The task has ended without a value. The instance goes on with the others."""

    task: int
    error: StrettoError


LLMEvent: TypeAlias = Started | Piece | Done | Failed
