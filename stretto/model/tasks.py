"""Tasks that schedulers give to engines, and the events with which LLM engines answer. Plain immutable
data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from stretto.model.errors import StrettoError
from stretto.model.record import record
from stretto.model.values import Prompt, Segment


@record
class Task:
    """One task of a batch for an engine: the op of one step of an app, with its inputs.

    If `num_items` is None, the op is applied once, and `inputs` maps its ports to values.
    Otherwise it is applied `num_items` times: the ports in `each` hold lists of that length, the other ports
    hold values used for every item, and the answer is a list of that length.

    Attributes:
        tenant: owner of the task. Named collections are never shared between tenants.
        others_serve: whether other instances serve too, to which the task goes if this one is busy.
    """

    id: int
    query: str
    step: str
    op: str
    inputs: Mapping[str, object]
    config: Mapping[str, object]
    num_items: int | None = None
    each: tuple[str, ...] = ()
    tenant: str = ""
    others_serve: bool = False


@dataclass(frozen=True, slots=True)
class Decode:
    """Settings of a decode: length, form of the output, and sampling.

    Attributes:
        max_tokens: largest number of generated tokens.
        fits_context: whether `max_tokens` is lowered to what the prompt leaves of the model's context; else a
            request whose prompt and `max_tokens` exceed it is refused.
        items: None for text; "json_list" for a `splittable` decode, whose value is the parsed list of
            strings and which stops at the end of its JSON. Numbered lists and lists of objects are parsed
            too. "calls" for the same with calls of tools, which may be JSON objects; a reply that has no list
            then has no calls.
        max_items: number of items after which the decode stops (lists only).
        fallback: name of a variable of the prompt, whose text becomes the only item where the output is no
            list (lists only); None fails then.
        stop: stop strings; the text ends before the first of them.
        temperature: 0 is greedy.
        seed: seed of the sampler, used if temperature > 0.
        draws_seed: whether the scheduler chooses a seed for each request, so that equal requests of a query
            differ. Engines get the seed.
        top_p: share of the probability; sampling uses the most likely tokens that make it up.
        top_k: number of most likely tokens to sample from; 0 for all.
        min_p: smallest probability to sample from, relative to that of the most likely token.
        repetition_penalty: factor for tokens of the prompt and of the output so far: divides their positive
            logits, and multiplies their negative ones.
        presence_penalty: number subtracted from the logits of tokens that are in the output.
        frequency_penalty: number subtracted from a token's logit for each time it is in the output.
        min_tokens: number of tokens before which neither an end of sequence nor a stop token is chosen.
        stop_tokens: ids that end the output and are not part of it.
        ignore_eos: whether the end of sequence is treated like any other token.
        tools: what servers that take calls of tools are sent besides the conversation, as the JSON of a
            `ToolOffer`; "" for none. The prompt says the same in words, for all other engines.
        json_schema: JSON schema of the output, as text; needs the package llguidance.
        schema_if_able: whether `json_schema` is a wish, which only engines that are known to be able to hold
            an output to it follow; else all others refuse it.
        regex: regular expression that the whole output matches; needs the package llguidance.
        choices: texts of which the output is one. Models in this process compare how likely they are;
            servers are asked to hold the output to them.
        strip: whether white space around a text is dropped. A prompt that goes on from the output has it all
            the same.
        logprobs: number of most likely tokens whose log-probabilities are reported, besides that of the
            chosen token; None for no report.
    """

    max_tokens: int = 128
    fits_context: bool = False
    items: str | None = None
    max_items: int | None = None
    fallback: str | None = None
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    draws_seed: bool = False
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
    schema_if_able: bool = False
    tools: str = ""
    regex: str | None = None
    choices: tuple[str, ...] = ()
    strip: bool = True


Objective: TypeAlias = Literal["latency", "throughput", "offline"]
"""Objective of a query: latency wants few sequences beside its own, throughput as many as fit; offline work
gives way to both. Source: Parrot §5.4; offline is ours."""
Criteria: TypeAlias = Literal["latency", "throughput", "offline", "first_token", "time_per_token"]
"""What a reader of a variable asks for: an objective of all work that it comes of; or that its text begins
soon ("first_token"), or that its text comes fast once it has begun ("time_per_token"). Source: Parrot §4.1,
which names the last two as extensions."""


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The properties that all requests of a query share.

    Attributes:
        tenant: owner of the query. Caches are never shared between tenants.
        criteria: "latency", "throughput" or "offline", what the query asks of the instances that serve it.
        deadline_s: time by the clock of the runtime or simulator at which the query fails if it has not
            ended.
        arrival_s: time by the same clock at which a one-shot query began, from which all its requests age;
            infinite for a session, whose requests age from their own arrival.
        is_streamed: whether the caller may read texts before their end.
        program: id of the program that the query is a part of, such as the session of an agent whose every
            turn is a query; "" where the query is a program by itself.
        kind: name of the app. Programs of one kind and tenant resemble each other in what they ask for.
    """

    tenant: str = ""
    criteria: Objective = "throughput"
    deadline_s: float | None = None
    arrival_s: float = math.inf
    is_streamed: bool = True
    program: str = ""
    kind: str = ""


@record
class LLMTask:
    """A request to an LLM instance: a prompt to prefill and, unless `decode` is None, to complete.

    The prompt is always the whole prompt so far. KV that an earlier task left in a cache saves time and is
    never relied on. A task without `decode` is answered with `Done(None)` when its prompt has been prefilled.

    Attributes:
        tenant: owner of the task. Caches are never shared between tenants.
        objective: "latency" or "throughput", what its instance is best filled for, or "offline" to give way
            to both. Requests of a task group are for throughput, even if their query asks for latency.
        generated: tokens that it had generated before it was suspended at another instance. They count for
            its limits, and the output made of them is reported again.
        item: index of the list item that it is for; 0 where its step is applied once.
        silence_s: seconds for which the instance may report nothing while it generates; 0 where somebody
            reads parts of the output before its end, so that they are wanted as they come.
        is_continued: whether a later prompt goes on from its output, so that `Done` has to say what was
            written.
        others_serve: whether other instances serve too, to which the task goes if this one is busy.
    """

    id: int
    query: str
    step: str
    prompt: Prompt
    decode: Decode | None
    tenant: str = ""
    objective: Objective = "throughput"
    generated: tuple[int, ...] = ()
    item: int = 0
    silence_s: float = 0.0
    is_continued: bool = False
    others_serve: bool = False


@record
class Reuse:
    """A forecast for an LLM instance: when a query will need the KV of a prompt's beginnings again.

    It orders evictions and nothing else, so that a wrong one costs time and never an answer.

    Attributes:
        prompt: a prompt that the instance has computed, with the answer as its last segment if that is text.
        uses: (number of leading segments of `prompt`, seconds from now until these are needed) for each
            expected use; None in place of the seconds if nothing is known. The query is expected never to
            need a segment again that no use covers.
    """

    query: str
    prompt: Prompt
    uses: tuple[tuple[int, float | None], ...]
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished LLM task: its prompt, the part of the prompt found in the cache, and its
    output.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


Finish: TypeAlias = Literal["stop", "length", "content_filter", "thoughts"]
"""How an answer of an LLM has ended: by itself (also with a stop string or its list), at its limit of tokens,
by the server's filter of contents, or (with any of these) with thoughts and nothing after them."""


@record
class Started:
    """Event of an LLM engine: a task has left the instance's queue, and its prefill begins."""

    task: int


@record
class Piece:
    """Event of an LLM engine: a task has more output, which is a text delta or one complete list item."""

    task: int
    value: str


@record
class Done:
    """Event of an LLM engine: a task has ended.

    `value` is its whole output: a str, a list of str for a decode with `items`, or None for a prefill.
    `written` is the text as it was generated, without thoughts, end token and stop string, and with all white
    space; None unless the task asks for it.
    """

    task: int
    value: object
    usage: Usage = Usage()
    written: Segment | None = None
    finish: Finish = field(default="stop", compare=False)


@record
class Ending:
    """The end of an LLM request that did not end by itself.

    Attributes:
        step: name of the app's step that made the request.
        num_tokens: number of tokens of its output, thoughts included.
        outputs: names of the outputs of the query that are its answer, or have it among their items.
    """

    step: str
    finish: Finish
    num_tokens: int
    outputs: tuple[str, ...] = ()


@record
class Failed:
    """Event of an LLM engine: a task has ended without a value. The instance goes on with its other tasks."""

    task: int
    error: StrettoError


LLMEvent: TypeAlias = Started | Piece | Done | Failed
