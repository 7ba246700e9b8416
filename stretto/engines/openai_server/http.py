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
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.request import getproxies

import httpx

from stretto.http.client.address import Address
from stretto.http.client.by_httpx import HttpxClient
from stretto.http.client.client import HttpAnswer, HttpClient, Target
from stretto.http.client.direct import DirectClient
from stretto.model.errors import (
    BadReply,
    BadServer,
    ConfigError,
    EngineBusy,
    EngineTimeout,
    EngineUnavailable,
    EngineUnreachable,
    NotFound,
)
from stretto.wire import sse
from stretto.wire.errors import (
    REDIRECTIONS,
    is_passing,
    raise_for_event,
    read_param,
    read_reason,
    read_retry_after,
)
from stretto.wire.server_url import read_server_url

_MAX_BODY_BYTES = 8_000_000
_NOT_FOUND = 404
_BUSY = (429, 503)
_REFUSED = (400, 413, 422)
_STALE_S = 1.0
"""Seconds within which a connection that had idled for too long breaks; later the server has failed."""
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A reason to ask a server again.

    Attributes:
        wait_s: seconds after which, if the server says it.
        has_broken: whether the connection broke, perhaps because it had idled for too long.
    """

    error: EngineUnavailable
    wait_s: float | None
    has_broken: bool = False


class HttpConfig(Protocol):
    """The settings of an HTTP client; `OpenAIServerConfig` says what each means."""

    @property
    def url(self) -> str: ...
    @property
    def api_key_env(self) -> str: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def connect_timeout_s(self) -> float: ...
    @property
    def max_retries(self) -> int: ...
    @property
    def backoff_s(self) -> float: ...
    @property
    def max_backoff_s(self) -> float: ...


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
        key = os.environ.get(config.api_key_env, "").strip()
        headers = {"Accept-Encoding": "identity"}  # nobody is to hold events back to compress them
        if not key.isprintable():
            raise ConfigError(f"the key in {config.api_key_env} has control characters in it")
        self._key = key.encode()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._url = read_server_url(config.url)
            url = httpx.URL(self._url.root)
            self.name = str(url.copy_with(userinfo=b"")).rstrip("/")
            target = Target(url, self.name, headers, config.timeout_s, config.connect_timeout_s)
            has_host = bool(url.host)
            self._client = client or _client_of(target)
        except (httpx.InvalidURL, ValueError, ImportError, OSError) as error:  # proxies and certificates too
            raise ConfigError(f"{config.url!r}, key from {config.api_key_env}: {error}") from error
        if not has_host:
            raise ConfigError(f"{config.url!r} names no host")

    async def aclose(self) -> None:
        """Close all connections to the server."""
        await self._client.aclose()

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
            return await self._read(answer)

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
                found = self._without_key(await self._read(answer))
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
                answer = await self._send(path, data)
            except EngineUnreachable as refusal:
                if error is None:
                    raise
                raise error from refusal  # the request has reached the server before
            if not isinstance(answer, _Refusal):
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

    async def _send(self, path: str, body: bytes | None) -> HttpAnswer | _Refusal:
        """Do what `_attempt` does; learn from the first answer whether paths of the API begin with `v1/`."""
        url = self._url
        try:
            found = await self._attempt(url.target(path), body)
        except NotFound:
            url = url.without_version()
            if not self._url.is_guess or url.target(path) == self._url.target(path):
                raise
            found = await self._attempt(url.target(path), body)
        if not isinstance(found, _Refusal) and path.startswith("v1/"):
            self._url = replace(url, is_guess=False)
        return found

    async def _attempt(self, path: str, body: bytes | None) -> HttpAnswer | _Refusal:
        """Return a successful answer, or why to try again."""
        sent_s = time.monotonic()
        try:
            async with asyncio.timeout(self._config.connect_timeout_s + self._config.timeout_s):
                answer = await self._client.send("GET" if body is None else "POST", path, body)
        except TimeoutError as error:
            raise self._silence() from error
        except EngineUnreachable:
            raise
        except EngineUnavailable as broken:  # perhaps the connection had idled for too long
            if time.monotonic() - sent_s > _STALE_S:
                raise
            return _Refusal(broken, None, has_broken=True)
        if 200 <= answer.status < 300:
            return answer
        try:
            refused = self._without_key(await self._read(answer))
        finally:
            await answer.aclose()
        reason = read_reason(refused)
        if answer.status in REDIRECTIONS and (location := answer.header("location")):
            reason = f"go to {location[:500]}"
        problem = f"{self.name} answered {answer.status}: {reason}"
        if answer.status == _NOT_FOUND:
            raise NotFound(problem)
        if answer.status in _REFUSED:
            param = read_param(refused)
            refusal = BadReply(problem if param in problem else f"{problem} (field {param})")
            refusal.is_refusal = True
            raise refusal
        if not is_passing(answer.status):
            raise BadServer(problem)
        wait_s = read_retry_after(answer.header("retry-after"), time.time())
        if answer.status in _BUSY:
            return _Refusal(EngineBusy(problem, retry_after_s=wait_s or 0.0), wait_s)
        return _Refusal(EngineUnavailable(problem), wait_s)

    def _silence(self) -> EngineTimeout:
        return EngineTimeout(f"{self.name} was silent for {self._config.timeout_s} s")

    def _check_silence(self, last_s: float) -> None:
        """Enforce our own deadline since `last_s`: a server that trickles bytes is never silent for the HTTP
        client. Raises EngineTimeout when it is over.
        """
        if time.monotonic() - last_s > self._config.timeout_s:
            raise self._silence()

    async def _read(self, answer: HttpAnswer) -> bytes:
        body = bytearray()
        begun_s = time.monotonic()
        async for received in answer.parts():
            self._check_silence(begun_s)
            body += received
            if len(body) > _MAX_BODY_BYTES:
                raise BadServer(f"{self.name} sent more than {_MAX_BODY_BYTES} bytes")
        return bytes(body)

    def _without_key(self, refusal: bytes) -> bytes:
        """Return what a server says of a request in place of an answer, without the key if it repeats that:
        people without the key may read it.
        """
        return refusal.replace(self._key, b"(the key)") if self._key else refusal

    async def _events(self, answer: HttpAnswer, is_complete: Callable[[], bool]) -> AsyncIterator[Any]:
        """Yield the events up to `[DONE]`, or to the end of an answer that is complete.

        Comments, which proxies send to keep a connection, count as silence.
        """
        decoder = sse.EventDecoder()
        last_s = time.monotonic()
        async for received in answer.parts():
            self._check_silence(last_s)
            for data in decoder.feed(received):
                yield read_server_json(data)
                last_s = time.monotonic()
            if decoder.is_done:
                return
        if not is_complete():
            rest = decoder.rest[-200:]
            raise EngineUnavailable(f"{self.name} ended its answer early, after {rest!r}")


def _client_of(target: Target) -> HttpClient:
    """Return the client for a target. Raises what `HttpxClient` raises."""
    url = target.url
    if url.scheme != "http" or url.userinfo or not {"http", "all"}.isdisjoint(getproxies()):
        return HttpxClient(target)
    path = url.raw_path.decode().rstrip("/")
    return DirectClient(
        target, Address(url.raw_host.decode(), url.port or 80, False, url.netloc.decode(), path)
    )


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
