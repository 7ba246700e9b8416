"""The request that a task becomes at a server: a completion, or a chat.

Settings beyond OpenAI's own (`top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`,
`stop_token_ids`, `structured_outputs`) have vLLM's names; other servers may ignore them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stretto.engines.decoding import BASIC, changed_settings
from stretto.engines.openai_server.prompt import SentPrompt
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode
from stretto.wire.options import Options
from stretto.wire.output_form import OutputForm
from stretto.wire.paths import Api
from stretto.wire.requests import ChatRequest, CompletionRequest, GenerateRequest

# What a request calls a setting that is sent only if it is not the default.
_NAMES: Mapping[str, str] = {
    **{name: name for name in ("top_p", "presence_penalty", "frequency_penalty")},
    **{name: name for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")},
    "stop_tokens": "stop_token_ids",
}
UNDERSTOOD = BASIC | _NAMES.keys() | {"json_schema", "regex", "choices"}


def build_request(
    api: Api,
    model: str,
    prompt: SentPrompt,
    decode: Decode,
    priority: int | None = None,
    *,
    is_streamed: bool = True,
) -> GenerateRequest:
    """Return the request that asks a server to complete a prompt, or in a chat to answer it.

    The prompt's tenant is sent as vLLM's `cache_salt`, which keeps tenants' cached prompts apart. If
    its last message is the assistant's, the server is asked to go on with it, in vLLM's way.

    Args:
        priority: number by which vLLM orders requests, smallest first; None for none.
        is_streamed: whether the answer comes in pieces.

    Raises:
        ConfigError: the JSON schema is not JSON.
    """
    options = replace(
        options_of(decode),
        stream=is_streamed,
        include_usage=is_streamed,
        cache_salt=prompt.tenant,
        priority=priority or 0,
    )
    if api == "completions":
        return CompletionRequest(model=model, prompts=(prompt.content,), options=options)
    is_open = prompt.messages[-1].role == "assistant"
    extra: dict[str, Any] = (
        {"add_generation_prompt": False, "continue_final_message": True} if is_open else {}
    )
    offer = prompt.offer
    if offer is not None and offer.choice != "auto":
        extra["tool_choice"] = offer.choice
    if offer is not None and offer.max_calls == 1:
        extra["parallel_tool_calls"] = False
    tools = () if offer is None else offer.tools
    return ChatRequest(model=model, messages=prompt.messages, options=options, tools=tools, extra=extra)


def options_of(decode: Decode) -> Options:
    """Return the options that ask a server for an answer by these settings.

    Raises:
        ConfigError: the JSON schema is not JSON.
    """
    changed = changed_settings(decode)
    settings: dict[str, Any] = {_NAMES[name]: value for name, value in changed.items() if name in _NAMES}
    return Options(
        max_tokens=decode.max_tokens,
        temperature=decode.temperature,
        seed=decode.seed,
        stop=decode.stop,
        form=_form(decode),
        **settings,
    )


def _form(decode: Decode) -> OutputForm | None:
    if decode.json_schema is not None:
        try:
            return OutputForm("json", json.loads(decode.json_schema))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"json_schema is not JSON: {error}") from error
    if decode.choices:
        return OutputForm("choice", decode.choices)
    return None if decode.regex is None else OutputForm("regex", decode.regex)
