"""A client that sends the requests of a load to an OpenAI-compatible server and streams the answers.

A prompt of messages goes to the chat API, with the fields that the trace has. A prompt of known length goes
to the completions API as made-up token ids, so that its length is exact, with `ignore_eos`; or, with the chat
API, as words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.discovery import find_model
from stretto.engines.openai_server.http import Http
from stretto.model.errors import ConfigError
from stretto.trace.agents.live_load import LoadAnswer, run_live
from stretto.trace.agents.load_report import RequestTimes
from stretto.trace.agents.prompts import made_up_ids
from stretto.trace.agents.requests import AgentRequest, AgentTrace, Message, SizedPrompt
from stretto.wire import paths
from stretto.wire.answers import TokenCounts, read_chunk
from stretto.wire.paths import Api

_SILENCE_S = 600.0
"""Longest silence of a server in seconds; requests of a heavy load may wait long for their first token."""


async def send_trace(
    trace: AgentTrace,
    times: list[RequestTimes],
    url: str,
    model: str | None = None,
    sized_api: str = "completions",
) -> None:
    """Replay a trace against a server, and add the times of each request to `times` when it ends.

    The server is asked for its models first, to find out whether it can be reached.

    Args:
        model: model of requests that name none; None takes the only one that the server lists.
        sized_api: API for prompts of known length.

    Raises:
        ConfigError: the URL or the API cannot be used; or the server lists several models, and none is given.
        EngineFailure: the server cannot be reached, or lists no model and none is given.
    """
    api = next((api for api in paths.GENERATE if api == sized_api), None)
    if api is None:
        raise ConfigError(f"there is no api {sized_api!r}; there are {', '.join(paths.GENERATE)}")
    config = OpenAIServerConfig(url, api=api, timeout_s=_SILENCE_S)
    http = Http(config)
    try:
        named = (await find_model(http, model)).id
        await run_live(trace, OpenAILoad(http, named, api), times)
    finally:
        await http.aclose()


class OpenAILoad:
    """A function that asks one server.

    Args:
        model: model of requests that name none.
        sized_api: API for prompts of known length.
    """

    def __init__(self, http: Http, model: str, sized_api: Api = "completions") -> None:
        self._http = http
        self._model = model
        self._sized_api = sized_api

    async def __call__(
        self, request: AgentRequest, messages: Sequence[Message], note_first: Callable[[], None]
    ) -> LoadAnswer:
        """Send a request once and read the whole answer.

        Raises:
            EngineFailure: the server cannot be reached, refuses the request, breaks off or is silent.
        """
        api = self._sized_api if isinstance(request.prompt, SizedPrompt) else "chat"
        body = request_body(request, messages, self._model, api)
        counts: TokenCounts | None = None
        texts: list[str] = []
        num_pieces = 0
        has_begun = False
        async with self._http.stream(paths.GENERATE[api], body, is_retried=False) as events:
            async for event in events:
                chunk = read_chunk(api, event)
                counts = chunk.counts or counts
                for choice in chunk.choices:
                    if not has_begun and (choice.has_output or choice.finish):
                        has_begun = True
                        note_first()
                    num_pieces += choice.has_output
                    if choice.index == 0:
                        texts.append(choice.text)
        if counts is None:
            return LoadAnswer("".join(texts), num_output=num_pieces)
        return LoadAnswer("".join(texts), counts.num_prompt, counts.num_cached or 0, counts.num_output)


def request_body(
    request: AgentRequest, messages: Sequence[Message], model: str, api: Api
) -> dict[str, object]:
    """Return the body of a request, with all its messages."""
    prompt = request.prompt
    body: dict[str, object] = {"model": request.model or model}
    if request.output_tokens is not None:
        body["max_tokens"] = max(1, request.output_tokens)
    if isinstance(prompt, SizedPrompt):
        body["ignore_eos"] = True
    elif prompt.tools:
        body["tools"] = list(prompt.tools)
    if api == "completions" and isinstance(prompt, SizedPrompt):
        body["prompt"] = made_up_ids(request.id, prompt)
    else:
        body["messages"] = list(messages)
    return {**body, **request.extra, "stream": True, "stream_options": {"include_usage": True}}
