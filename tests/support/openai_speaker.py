"""A stub that behaves like a whole server: words that depend on the prompt, limits, counts and metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from stretto.wire import engine_metrics, metrics, paths
from stretto.wire.errors import RequestRefused, prompt_too_long, too_many_tokens_asked, unknown_model
from stretto.wire.metrics import Family, Histogram
from stretto.wire.models import ModelCard, models_json, tokenize_json
from stretto.wire.requests import (
    DEFAULT_COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    WirePrompt,
)
from support.openai_stub import MODEL, OpenAIStub, Reply

CONTEXT_TOKENS = 2048
_BLOCK_TOKENS = 32
_DELTA_S = 0.001


class Speaker:
    """A function of requests that answers for `stub`. A token is a word."""

    def __init__(self) -> None:
        self.stub = OpenAIStub(
            self._answer,
            pages={
                f"GET /{paths.MODELS}": lambda _: json.dumps(
                    models_json([ModelCard(MODEL, None, CONTEXT_TOKENS)])
                ),
                f"GET /{paths.HEALTH}": lambda _: "",
                f"GET /{paths.METRICS}": lambda _: self._metrics(),
                f"POST /{paths.TOKENIZE}": lambda body: json.dumps(
                    tokenize_json(range(len(body["prompt"].split())), CONTEXT_TOKENS)
                ),
            },
        )
        self._seen: set[WirePrompt] = set()
        self._num_prompt_tokens = 0

    def _answer(self, body: Mapping[str, Any]) -> Reply:
        is_chat = "messages" in body
        request: GenerateRequest = (
            ChatRequest.from_json(body) if is_chat else CompletionRequest.from_json(body)
        )
        try:
            return self._speak(request)
        except RequestRefused as refused:
            return Reply.refusing(refused.answer)

    def _speak(self, request: GenerateRequest) -> Reply:
        options = request.options
        if request.model not in ("", MODEL):
            raise unknown_model(request.model, [MODEL])
        prompt, room = _prompt(request), CONTEXT_TOKENS
        num_prompt = len(prompt.split() if isinstance(prompt, str) else prompt)
        if num_prompt >= room:
            raise prompt_too_long(num_prompt, room)
        default = DEFAULT_COMPLETION_TOKENS if isinstance(request, CompletionRequest) else room
        max_tokens = default if options.max_tokens is None else options.max_tokens
        if max_tokens > room:
            raise too_many_tokens_asked(max_tokens, room)
        words = Random(repr(prompt))
        deltas = [f" w{words.randrange(100)}" for _ in range(min(max_tokens, room - num_prompt))]
        num_cached = num_prompt // _BLOCK_TOKENS * _BLOCK_TOKENS if prompt in self._seen else 0
        self._seen.add(prompt)
        self._num_prompt_tokens += num_prompt
        deltas, stop = _cut(deltas, options.stop)
        return Reply(
            tuple(deltas),
            finish="length" if stop is None else "stop",
            stop_reason=stop,
            num_prompt=num_prompt,
            num_cached=num_cached,
            delta_s=_DELTA_S,
        )

    def _metrics(self) -> str:
        values: dict[Family, float] = {
            engine_metrics.VLLM_NUM_RUNNING: self.stub.num_running,
            engine_metrics.VLLM_PROMPT_TOKENS: self._num_prompt_tokens,
            engine_metrics.VLLM_OUTPUT_TOKENS: self.stub.num_output_tokens,
        }

        def labels(family: Family) -> tuple[str, ...]:
            return ("",) * (len(family.labels) - 2) + ("0", MODEL)

        return metrics.render(
            (
                family,
                Histogram(engine_metrics.REQUEST_BOUNDS_S).samples(family, *labels(family))
                if family.kind == "histogram"
                else [family.sample(values.get(family, 0.0), *labels(family))],
            )
            for family in engine_metrics.VLLM
        )


def _prompt(request: GenerateRequest) -> WirePrompt:
    if isinstance(request, ChatRequest):
        return " ".join(message.text for message in request.messages)
    return request.prompts[0]


def _cut(deltas: list[str], stop: tuple[str, ...]) -> tuple[list[str], str | None]:
    """Return the text before the first stop string, and which one that is."""
    text = "".join(deltas)
    found = [(text.index(end), end) for end in stop if end in text]
    if not found:
        return deltas, None
    length, end = min(found)
    kept: list[str] = []
    for delta in deltas:
        kept.append(delta[:length])
        length -= len(delta)
        if length <= 0:
            break
    return kept, end
