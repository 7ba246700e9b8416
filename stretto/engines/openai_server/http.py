"""An HTTP client for a server of a model: retries, streams of events, and errors by kind of failure.

`EngineUnavailable`: the server breaks off, or says that it has failed. `EngineBusy`: it is overloaded.
`EngineUnreachable`: it takes no connection. `EngineTimeout`: it is silent. All are worth another attempt.
`BadServer` is worth one at each other server: it refuses all requests, or answers something else than the API
says. `BadReply` is worth none: the server refuses this request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from stretto.engines.openai_server.attempts import AskAgain, HttpConfig, SingleAttempts
from stretto.http.client.client import HttpAnswer, HttpClient
from stretto.model.errors import BadServer, ConfigError, EngineUnavailable, EngineUnreachable
from stretto.wire import sse
from stretto.wire.errors import raise_for_event

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _never() -> bool:
    return False


class Http:
    """The HTTP client of one server, with retries, streams and typed errors.

    Attributes:
        name: URL of the server without passwords, for messages.

    Args:
        client: sends the requests; None makes one for the URL.

    Raises:
        ConfigError: the URL or the key cannot be used.
    """

    def __init__(self, config: HttpConfig, client: HttpClient | None = None) -> None:
        """Create the client; nothing is sent yet. Raises ConfigError if the URL or the key cannot be used."""
        self._config = config
        self._attempts = SingleAttempts(config, client)
        self.name = self._attempts.name

    async def aclose(self) -> None:
        """Close all connections to the server."""
        await self._attempts.client.aclose()

    async def fetch(
        self,
        path: str,
        body: dict[str, object] | None = None,
        *,
        is_retried: bool = True,
        others_serve: bool = False,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> bytes:
        """Send a GET, or a POST if there is a `body`, and return the whole body of the answer.

        Args:
            others_serve: whether the request can go to another server. Then one that fails is not asked
                again; but a connection that had idled for too long is made anew, at once.
            wait: waits so many seconds before another attempt.

        Raises:
            EngineUnavailable: the server cannot be reached, breaks off, or is overloaded.
            EngineTimeout: the server is silent.
            BadReply: the server refuses the request.
            BadServer: the server refuses whoever asks, or sends too much.
        """
        async with self._open(
            path, body, is_retried=is_retried, others_serve=others_serve, wait=wait
        ) as answer:
            return await self._attempts.read(answer)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        body: dict[str, object],
        *,
        is_retried: bool = True,
        others_serve: bool = False,
        is_complete: Callable[[], bool] = _never,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Send a POST whose answer is a stream of server-sent events; the context manager yields an iterator
        over the events' JSON.

        Leaving the context before the end aborts the request.

        Args:
            others_serve: whether the request can go to another server, as `fetch` takes it.
            is_complete: asked when the server closes an answer properly but without `[DONE]`: whether it is
                whole all the same.
            wait: waits so many seconds before another attempt.
        """
        async with self._open(
            path, body, is_retried=is_retried, others_serve=others_serve, wait=wait
        ) as answer:
            kind = answer.header("content-type") or "untyped"
            if not kind.lower().startswith(sse.CONTENT_TYPE):
                found = self._attempts.without_key(await self._attempts.read(answer))
                _raise_for_error(found)
                problem = f"{self.name} answered with {kind}, not with a stream of events: {found[:200]!r}"
                raise BadServer(problem)
            yield self._events(answer, is_complete)

    @contextlib.asynccontextmanager
    async def _open(
        self,
        path: str,
        body: dict[str, object] | None,
        *,
        is_retried: bool,
        others_serve: bool,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncIterator[HttpAnswer]:
        """Yield a successful answer, not yet read. Nothing is tried again once it is there."""
        num_retries = self._config.max_retries if is_retried else 0
        answer = await self._respond(path, body, num_retries, wait, others_serve=others_serve)
        try:
            yield answer
        finally:
            await answer.aclose()

    async def _respond(
        self,
        path: str,
        body: dict[str, object] | None,
        num_retries: int,
        wait: Callable[[float], Awaitable[None]],
        *,
        others_serve: bool,
    ) -> HttpAnswer:
        try:
            data = None if body is None else _JSON.encode(body).encode()
        except ValueError as wrong:  # NaN, or half of a surrogate pair
            raise ConfigError(f"the request cannot be written as JSON: {wrong}") from wrong
        backoff_s = self._config.backoff_s
        error: EngineUnavailable | None = None
        while True:
            try:
                answer = await self._attempts.send(path, data)
            except EngineUnreachable as refusal:
                if error is None:
                    raise
                raise error from refusal  # the request has reached the server before
            if not isinstance(answer, AskAgain):
                return answer
            error = answer.error
            if num_retries == 0 or (others_serve and not answer.has_broken):
                raise error
            wait_s = answer.wait_s
            if others_serve:
                num_retries, wait_s = 1, 0.0
            elif wait_s is None:  # clients that were refused together are not to come back together
                wait_s = backoff_s * random.uniform(0.5, 1.0)
            await wait(min(wait_s, self._config.max_backoff_s))
            num_retries -= 1
            backoff_s *= 2

    async def _events(self, answer: HttpAnswer, is_complete: Callable[[], bool]) -> AsyncIterator[Any]:
        """Yield the events up to `[DONE]`, or to the end of an answer that is complete.

        Comments, which proxies send to keep a connection, count as silence.
        """
        decoder = sse.EventDecoder()
        last_s = time.monotonic()
        async for received in answer.parts():
            self._attempts.check_silence(last_s)
            for data in decoder.feed(received):
                yield read_server_json(data)
                last_s = time.monotonic()
            if decoder.is_done:
                return
        if not is_complete():
            rest = decoder.rest[-200:]
            raise EngineUnavailable(f"{self.name} ended its answer early, after {rest!r}")


def _raise_for_error(body: bytes) -> None:
    """Raise the error that a body reports, if it is JSON that reports one."""
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(body)
        if isinstance(answer, dict):
            raise_for_event(answer)


def read_server_json(data: bytes) -> Any:
    """Parse JSON that a server sent. Raises BadServer if it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadServer(f"the server did not send JSON: {data[:200]!r}") from error
