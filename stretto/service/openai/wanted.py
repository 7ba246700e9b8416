"""What a request for a text asks for, in the settings of the runtime. What cannot be honoured is refused by
name.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stretto.engines.chat_markup import RAW
from stretto.graph.one_call import PromptMessage
from stretto.model.tasks import Objective
from stretto.service.config import DEFAULT_CHAT_TOKENS
from stretto.service.openai.errors import invalid, unsupported
from stretto.service.openai.messages import prompt_of
from stretto.service.openai.tools import ToolUse, read_tools
from stretto.wire.fields import Fields, flag
from stretto.wire.options import Options
from stretto.wire.requests import DEFAULT_COMPLETION_TOKENS, ChatRequest, CompletionRequest
from stretto.wire.service_tiers import TIERS

MAX_CHOICES = 128
"""Largest number of answers to one request."""
DEFAULT_TEMPERATURE = 1.0
"""OpenAI's."""
_MOST_TOKENS = 2**31 - 1
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "session_id", "program_id")
"""Fields that change no answer: OpenAI's, and those by which clients name programs."""
_SAME = ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens")
_RENAMED = {"stop_token_ids": "stop_tokens"}
_HONOURED = {
    *("max_tokens", "temperature", "seed", "n", "stop", "stream", "include_usage", "top_k", "form"),
    *("ignore_eos", "stop_token_ids", *_SAME),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedText:
    """A request for texts, each of which is one call of an LLM.

    Attributes:
        prompts: prompts, each of which is answered `n` times.
        decode: settings of the calls, by the names of `Decode`.
        echoes: texts that stand before the answers to each prompt.
        tools: tools that the answer may call; None for a plain answer.
    """

    prompts: tuple[tuple[PromptMessage, ...], ...]
    decode: Mapping[str, Any]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    objective: Objective = "throughput"
    tier: str | None = None
    echoes: tuple[str, ...] = ()
    tools: ToolUse | None = None

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens of one answer."""
        return int(self.decode["max_tokens"])

    @property
    def form_field(self) -> str | None:
        """Name of the field that the form of the answers comes of; None for a plain text."""
        if self.tools is not None:
            return "tools"
        if "json_schema" in self.decode:
            return "response_format"
        return "structured_outputs" if {"regex", "choices"} & self.decode.keys() else None

    @property
    def num_choices(self) -> int:
        """Number of answers."""
        return len(self.prompts) * self.n

    def decode_of(self, choice: int) -> Mapping[str, Any]:
        """Return the settings of one of the answers, by its number: each has a seed of its own."""
        if not self.decode["temperature"]:
            return self.decode
        return {**self.decode, "seed": self.decode["seed"] + choice % self.n}

    def limited(self, max_tokens: int) -> WantedText:
        """Return the request with shorter answers, unless they are short enough."""
        tokens = min(self.max_tokens, max_tokens)
        return replace(self, decode={**self.decode, "max_tokens": tokens})


def wanted_chat(request: ChatRequest, body: Mapping[str, Any]) -> WantedText:
    """Return what a chat asks for.

    Args:
        body: the JSON that the request was read from.

    Raises:
        Refused, RequestRefused: something in it is wrong, or cannot be honoured.
    """
    left = Fields(_left(request.extra, body, request.options))
    is_parallel = left.take("parallel_tool_calls", flag, True)
    choice = left.take("tool_choice", lambda _, value: value, None)
    if left.take("modalities", lambda _, value: value, ["text"]) != ["text"]:
        raise unsupported("modalities", "the only modality is text")
    tier = _tier(left)
    _check_nothing(left)
    form = request.options.form
    answer = None if form is None else form.schema
    tools = read_tools(request.tools, choice, is_parallel, answer)
    decode = _decode(request.options, DEFAULT_CHAT_TOKENS, strips=True)
    if tools is not None:
        if {"regex", "choices"} & decode.keys():
            raise unsupported("structured_outputs", "tools go together with a JSON schema only")
        decode["json_schema"], decode["tools"] = tools.schema(), tools.offer()
    return WantedText(
        prompts=(prompt_of(request.messages, tools),),
        decode=decode,
        n=_num_answers(request.options, 1),
        stream=request.options.stream,
        include_usage=request.options.include_usage,
        objective=TIERS[tier or "default"],
        tier=tier,
        tools=tools,
    )


def wanted_completion(request: CompletionRequest, body: Mapping[str, Any]) -> WantedText:
    """Return what a completion asks for. Arguments and errors are those of `wanted_chat`."""
    left = Fields(_left(request.extra, body, request.options))
    if left.take("best_of", lambda _, value: value, request.options.n) != request.options.n:
        raise unsupported("best_of", "best_of must be n: no answers are left out")
    if left.take("suffix", lambda _, value: value, "") != "":
        raise unsupported("suffix")
    tier = _tier(left)
    _check_nothing(left)
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    if len(texts) < len(request.prompts):
        raise unsupported("prompt", "a prompt must be a text: token ids are not read here")
    return WantedText(
        prompts=tuple((PromptMessage(RAW, text),) for text in texts),
        decode=_decode(request.options, DEFAULT_COMPLETION_TOKENS, strips=False),
        n=_num_answers(request.options, len(texts)),
        stream=request.options.stream,
        include_usage=request.options.include_usage,
        objective=TIERS[tier or "default"],
        tier=tier,
        echoes=tuple(texts) if request.echo else (),
    )


def checked_stream(options: Options, body: Mapping[str, Any]) -> None:
    """Check the options of a stream. Raises Refused if one cannot be honoured."""
    streaming = body.get("stream_options") or {}
    for name, value in streaming.items():
        if name != "include_usage" and value:
            raise unsupported(f"stream_options.{name}")


def _left(extra: Mapping[str, Any], body: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return the fields that have still to be read, after those that change nothing have been taken out.

    Raises:
        Refused: an option cannot be honoured.
    """
    checked_stream(options, body)
    default = Options()
    for name in Options.__slots__:
        if name not in _HONOURED and getattr(options, name) != getattr(default, name):
            raise unsupported(name)
    left = {name: value for name, value in extra.items() if value is not None and name not in _LABELS}
    if left.get("store") is False:
        del left["store"]
    if left.get("logit_bias") == {}:
        del left["logit_bias"]
    return left


def _check_nothing(left: Fields) -> None:
    if rest := left.left():
        raise unsupported(next(iter(rest)))


def _tier(left: Fields) -> str | None:
    tier: object = left.take("service_tier", lambda _, value: value, None)
    if tier is None:
        return None
    if not isinstance(tier, str) or tier not in TIERS:
        raise unsupported("service_tier", f"service_tier must be one of {', '.join(TIERS)}")
    return tier


def _num_answers(options: Options, num_prompts: int) -> int:
    if options.n * num_prompts > MAX_CHOICES:
        raise invalid("n", f"{options.n * num_prompts} answers; one request has at most {MAX_CHOICES}")
    return options.n


def _decode(options: Options, usual_tokens: int, *, strips: bool) -> dict[str, Any]:
    """Return options as settings of a decode; `strips` as in `Decode`."""
    default = Options()
    given = {name: getattr(options, name) for name in (*_SAME, *_RENAMED)}
    found = {
        _RENAMED.get(name, name): value for name, value in given.items() if value != getattr(default, name)
    }
    if options.ignore_eos:
        found["ignore_eos"] = True
    if options.top_k is not None and options.top_k > 0:
        found["top_k"] = options.top_k
    if options.stop:
        found["stop"] = options.stop
    temperature = DEFAULT_TEMPERATURE if options.temperature is None else options.temperature
    if temperature:
        found["seed"] = secrets.randbits(31) if options.seed is None else options.seed
    max_tokens = usual_tokens if options.max_tokens is None else options.max_tokens
    if max_tokens < 1:
        raise unsupported("max_tokens", "max_tokens must be at least 1")
    return {
        **found,
        **({} if options.form is None else options.form.decode_settings()),
        "max_tokens": min(max_tokens, _MOST_TOKENS),
        "fits_context": True,
        "temperature": temperature,
        "strip": strips,
    }


def num_prompt_chars(prompts: Sequence[Sequence[PromptMessage]]) -> int:
    """Return the number of characters of prompts."""
    return sum(len(message.text) for prompt in prompts for message in prompt)
