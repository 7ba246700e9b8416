"""An LLM behind any server that speaks OpenAI's completions API: vLLM, SGLang, llama.cpp.

The prompt is one text for `/v1/completions`: no chat template is applied, so a chat model sees it without
its turns, and a base model writes on until `max_tokens` or a stop string. Settings beyond OpenAI's own
(`top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`, `stop_tokens`) have vLLM's names; other
servers may ignore them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from stretto.engines.decoding import BASIC, changed, refuse_others
from stretto.errors import BadReply, ConfigError, EngineTimeout, EngineUnavailable, StrettoError
from stretto.llm.output import Output
from stretto.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece, Started, Usage

# What a request calls a setting that is sent only if it is not the default.
_NAMES = {
    **{name: name for name in ("top_p", "presence_penalty", "frequency_penalty")},
    **{name: name for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")},
    "stop_tokens": "stop_token_ids",
}
_MAX_LINE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class OpenAIServerConfig:
    """Where the server is and how patient to be.

    Attributes:
        url: of the server, with or without `/v1`.
        model: the name the server knows; None takes the first that it lists.
        api_key_env: environment variable that holds the key, if there is one.
        timeout_s: longest silence of the server, before or within an answer.
        stop: stop strings of every text, besides those of the task; a list ends with its JSON anyway. Servers
            may take four in all.
        max_retries: further attempts after a 429 or 5xx, `backoff_s` later and twice as long each time.
    """

    url: str
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 60
    connect_timeout_s: float = 5
    stop: tuple[str, ...] = ()
    max_retries: int = 2
    backoff_s: float = 0.5


class OpenAIServer:
    """An `AsyncLLM`. The prompt is sent as text; a task without decode is done at once, unsent."""

    def __init__(self, config: OpenAIServerConfig) -> None:
        if not config.url.startswith(("http://", "https://")):
            raise ConfigError(f"{config.url!r} is no URL: it has to start with http:// or https://")
        self._config = config
        self._model = config.model
        key = os.environ.get(config.api_key_env)
        self._client = httpx.AsyncClient(
            base_url=config.url.rstrip("/").removesuffix("/v1") + "/v1",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(config.timeout_s, connect=config.connect_timeout_s, pool=None),
            limits=httpx.Limits(max_connections=None),
        )

    async def generate(self, task: LLMTask, emit: Callable[[LLMEvent], None]) -> None:
        """Run one task. Cancelling closes its connection, which servers take as an abort."""
        emit(Started(task.id))
        try:
            done = (
                Done(task.id, None) if task.decode is None else await self._complete(task, task.decode, emit)
            )
        except StrettoError as error:
            emit(Failed(task.id, error.at(task.step)))
        else:
            emit(done)

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def _complete(self, task: LLMTask, decode: Decode, emit: Callable[[LLMEvent], None]) -> Done:
        refuse_others(decode, BASIC | _NAMES.keys(), "an OpenAI-compatible server")
        if decode.items is None:
            decode = replace(decode, stop=tuple(dict.fromkeys((*decode.stop, *self._config.stop))))
        output = Output(decode)
        usage = Usage()
        body: dict[str, object] = {
            "model": await self._model_name(),
            "prompt": "".join(segment.text for segment in task.prompt),
            "max_tokens": decode.max_tokens,
            "temperature": decode.temperature,
            "seed": decode.seed,
            "stop": list(decode.stop) or None,
            "stream": True,
            "stream_options": {"include_usage": True},
            **{_NAMES[name]: value for name, value in changed(decode).items() if name in _NAMES},
        }
        num_deltas = num_chars = 0
        async with self._open("POST", "completions", body) as response:
            async for chunk in _chunks(response):
                text, usage = _read(chunk, usage)
                num_deltas += 1
                num_chars += len(text)
                if num_deltas > 4 * decode.max_tokens + 64 or num_chars > 64 * (decode.max_tokens + 16):
                    raise BadReply(f"the server writes on beyond max_tokens={decode.max_tokens}")
                pieces, finished = output.feed(text)
                for piece in pieces:
                    emit(Piece(task.id, piece))
                if finished:
                    break
        last, value = output.finish()
        for piece in last:
            emit(Piece(task.id, piece))
        return Done(task.id, value, usage)

    async def _model_name(self) -> str:
        if self._model is None:
            async with self._open("GET", "models") as response:
                listing = await response.aread()
            try:
                self._model = str(json.loads(listing)["data"][0]["id"])
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise BadReply(f"the server lists no model: {listing[:200]!r}") from error
        return self._model

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: dict[str, object] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """A successful response, not yet read. Retries while nothing of an answer has been seen."""
        backoff_s = self._config.backoff_s
        try:
            for num_left in range(self._config.max_retries, -1, -1):
                async with self._client.stream(method, path, json=body) as response:
                    if response.is_success:
                        yield response
                        return
                    await response.aread()
                problem = f"{self._client.base_url} answered {response.status_code}: {_reason(response)}"
                if response.status_code != 429 and response.status_code < 500:
                    raise BadReply(problem)
                if num_left == 0:
                    raise EngineUnavailable(problem)
                await asyncio.sleep(backoff_s)
                backoff_s *= 2
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            silence = f"{self._client.base_url} was silent for {self._config.timeout_s} s"
            raise EngineTimeout(silence) from error
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"cannot reach {self._client.base_url}: {error}") from error


async def _chunks(response: httpx.Response) -> AsyncIterator[Any]:
    """The JSON of each server-sent event. Lines end with \\n alone: text may hold other line breaks.

    Raises:
        BadReply: the stream is not one of events, has a line without end, or ends before `[DONE]`.
    """
    rest = bytearray()  # of a line: grows in place
    try:
        async for received in response.aiter_bytes():
            rest += received
            lines = []
            if b"\n" in received:
                *lines, rest = rest.split(b"\n")
            if max(map(len, [*lines, rest])) > _MAX_LINE_BYTES:
                raise BadReply(f"the server sent a line of more than {_MAX_LINE_BYTES} bytes")
            for line in lines:
                field, _, data = line.partition(b":")
                if field != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    return
                yield json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the server's stream is not JSON: {bytes(line[:200])!r}") from error
    except httpx.TimeoutException:
        raise
    except httpx.HTTPError as error:
        raise BadReply(f"the server's stream was cut: {error}") from error
    raise BadReply(f"the server's stream ended early; its last bytes are {bytes(rest[-200:])!r}")


def _read(chunk: Any, usage: Usage) -> tuple[str, Usage]:
    """The text of a chunk, and the counts so far: a token per delta until the server gives its own."""
    try:
        text = chunk["choices"][0]["text"] if chunk["choices"] else None
        text = "" if text is None else text
        text.encode()  # it is a text, without lone surrogates
        counts = chunk.get("usage")
        if not counts:
            return text, replace(usage, num_output_tokens=usage.num_output_tokens + bool(text))
        num_cached = (counts.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return text, Usage(counts["prompt_tokens"], num_cached, counts["completion_tokens"])
    except (LookupError, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise BadReply(f"not a chunk of a completion: {ascii(chunk)[:300]}") from error


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return response.text[:300]
