"""The two forms of OpenAI's API that servers stream text by: completions and chat.

Settings beyond OpenAI's own (`top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`,
`stop_tokens`, `regex`) have vLLM's names; other servers may ignore them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.engines.decoding import BASIC, changed
from stretto.engines.openai_server.config import Api
from stretto.errors import BadReply, ConfigError, EngineUnavailable
from stretto.tasks import Decode

PATHS: Mapping[Api, str] = {"completions": "v1/completions", "chat": "v1/chat/completions"}

# What a request calls a setting that is sent only if it is not the default.
_NAMES = {
    **{name: name for name in ("top_p", "presence_penalty", "frequency_penalty")},
    **{name: name for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")},
    "stop_tokens": "stop_token_ids",
}
_MAX_COUNT = 2**31
UNDERSTOOD = BASIC | _NAMES.keys() | {"json_schema", "regex"}


@dataclass(frozen=True, slots=True)
class Counts:
    """What the server counted, in tokens. `num_cached` is None where it does not say."""

    num_prompt: int
    num_output: int
    num_cached: int | None


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One event of a stream. `finish` says why the text has ended, once it has.

    What a model thinks before it answers are tokens, but no text.
    """

    text: str = ""
    is_output: bool = False
    finish: str | None = None
    counts: Counts | None = None


def request_body(
    api: Api,
    model: str,
    prompt: str | list[int],
    decode: Decode,
    tenant: str,
    priority: int | None = None,
) -> dict[str, object]:
    """What to send for a prompt, as text or, to completions, as token ids.

    A tenant's prompts are kept apart in the prefix cache by vLLM's `cache_salt`. With a `priority` vLLM
    starts requests of smaller ones first.

    Raises:
        ConfigError: the JSON schema is not JSON.
    """
    content: dict[str, object] = {"prompt": prompt}
    if api == "chat":
        content = {"messages": [{"role": "user", "content": prompt}]}
    return {
        "model": model,
        **content,
        "max_tokens": decode.max_tokens,
        "temperature": decode.temperature,
        "seed": decode.seed,
        "stop": list(decode.stop) or None,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"cache_salt": tenant} if tenant else {}),
        **({"priority": priority} if priority is not None else {}),
        **_form(decode),
        **{_NAMES[name]: value for name, value in changed(decode).items() if name in _NAMES},
    }


def _form(decode: Decode) -> dict[str, object]:
    """What the output has to be: OpenAI's name for a schema, vLLM's for an expression."""
    form: dict[str, object] = {}
    if decode.json_schema is not None:
        try:
            schema = {"name": "output", "schema": json.loads(decode.json_schema)}
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"json_schema is not JSON: {error}") from error
        form["response_format"] = {"type": "json_schema", "json_schema": schema}
    if decode.regex is not None:
        form["structured_outputs"] = {"regex": decode.regex}
    return form


def read_chunk(api: Api, event: Any) -> StreamChunk:
    """What an event says.

    Raises:
        EngineUnavailable: the server gives the request up.
        BadReply: it is not an event of this API, or the server refuses to go on.
    """
    try:
        if problem := event.get("error") or (event if event.get("object") == "error" else None):
            raise _failure(problem)
        counts = _counts(event.get("usage"))
        if not event["choices"]:
            return StreamChunk(counts=counts)
        choice = event["choices"][0]
        delta = choice["delta"] if api == "chat" else {"content": choice["text"]}
        text = "" if delta.get("content") is None else delta["content"]
        is_output = bool(text or delta.get("reasoning_content") or delta.get("reasoning"))
        text.encode()  # it is a text, without lone surrogates
        finish = choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise BadReply(f"not a chunk of a {api} stream: {ascii(event)[:300]}") from error
    if finish in ("abort", "error"):
        raise EngineUnavailable(f"the server ended the request with {finish!r}")
    return StreamChunk(text, is_output, finish, counts)


def _counts(usage: Any) -> Counts | None:
    if not usage:
        return None
    num_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    counts = Counts(usage["prompt_tokens"], usage["completion_tokens"], num_cached)
    numbers = (counts.num_prompt, counts.num_output, num_cached or 0)
    if not all(type(n) is int and 0 <= n < _MAX_COUNT for n in numbers):
        raise TypeError
    return counts


def _failure(problem: Any) -> BadReply | EngineUnavailable:
    """An error in mid-stream: `{"message": ..., "code": 500}`, or a text."""
    is_record = isinstance(problem, dict)
    code = problem.get("code") if is_record else None
    message = f"the server broke off: {problem.get('message', problem) if is_record else problem}"[:500]
    is_passing = isinstance(code, int) and (code == 429 or code >= 500)
    return EngineUnavailable(message) if is_passing else BadReply(message)
