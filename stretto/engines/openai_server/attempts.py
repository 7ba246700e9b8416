"""Single attempts to have a request answered by a server of a model, and errors by kind of failure."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from typing import Protocol
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
from stretto.wire.errors import REDIRECTIONS, is_passing, read_param, read_reason, read_retry_after
from stretto.wire.server_url import read_server_url

_MAX_BODY_BYTES = 8_000_000
_NOT_FOUND = 404
_BUSY = (429, 503)
_REFUSED = (400, 413, 422)
_STALE_S = 1.0
"""Seconds within which a connection that had idled for too long breaks; later the server has failed."""


@dataclass(frozen=True, slots=True)
class AskAgain:
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


class SingleAttempts:
    """Sends requests to one server, each once.

    Attributes:
        name: URL of the server without passwords, for messages.
        client: sends the bytes.

    Args:
        client: None makes one for the URL.

    Raises:
        ConfigError: the URL or the key cannot be used.
    """

    def __init__(self, config: HttpConfig, client: HttpClient | None) -> None:
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
            self.client = client or _client_of(target)
        except (httpx.InvalidURL, ValueError, ImportError, OSError) as error:  # proxies and certificates too
            raise ConfigError(f"{config.url!r}, key from {config.api_key_env}: {error}") from error
        if not has_host:
            raise ConfigError(f"{config.url!r} names no host")

    async def send(self, path: str, body: bytes | None) -> HttpAnswer | AskAgain:
        """Do what `_attempt` does; learn from the first answer whether paths of the API begin with `v1/`."""
        url = self._url
        try:
            found = await self._attempt(url.target(path), body)
        except NotFound:
            url = url.without_version()
            if not self._url.is_guess or url.target(path) == self._url.target(path):
                raise
            found = await self._attempt(url.target(path), body)
        if not isinstance(found, AskAgain) and path.startswith("v1/"):
            self._url = replace(url, is_guess=False)
        return found

    async def _attempt(self, path: str, body: bytes | None) -> HttpAnswer | AskAgain:
        """Return a successful answer, or why to try again."""
        sent_s = time.monotonic()
        try:
            async with asyncio.timeout(self._config.connect_timeout_s + self._config.timeout_s):
                answer = await self.client.send("GET" if body is None else "POST", path, body)
        except TimeoutError as error:
            raise self._silence() from error
        except EngineUnreachable:
            raise
        except EngineUnavailable as broken:  # perhaps the connection had idled for too long
            if time.monotonic() - sent_s > _STALE_S:
                raise
            return AskAgain(broken, None, has_broken=True)
        if 200 <= answer.status < 300:
            return answer
        try:
            refused = self.without_key(await self.read(answer))
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
            return AskAgain(EngineBusy(problem, retry_after_s=wait_s or 0.0), wait_s)
        return AskAgain(EngineUnavailable(problem), wait_s)

    def _silence(self) -> EngineTimeout:
        return EngineTimeout(f"{self.name} was silent for {self._config.timeout_s} s")

    def check_silence(self, last_s: float) -> None:
        """Enforce our own deadline since `last_s`: a server that trickles bytes is never silent for the HTTP
        client. Raises EngineTimeout when it is over.
        """
        if time.monotonic() - last_s > self._config.timeout_s:
            raise self._silence()

    async def read(self, answer: HttpAnswer) -> bytes:
        """Return the whole body of an answer. Raises EngineTimeout or BadServer for one without an end."""
        body = bytearray()
        begun_s = time.monotonic()
        async for received in answer.parts():
            self.check_silence(begun_s)
            body += received
            if len(body) > _MAX_BODY_BYTES:
                raise BadServer(f"{self.name} sent more than {_MAX_BODY_BYTES} bytes")
        return bytes(body)

    def without_key(self, refusal: bytes) -> bytes:
        """Return what a server says of a request in place of an answer, without the key if it repeats that:
        people without the key may read it.
        """
        return refusal.replace(self._key, b"(the key)") if self._key else refusal


def _client_of(target: Target) -> HttpClient:
    """Return the client for a target. Raises what `HttpxClient` raises."""
    url = target.url
    if url.scheme != "http" or url.userinfo or not {"http", "all"}.isdisjoint(getproxies()):
        return HttpxClient(target)
    path = url.raw_path.decode().rstrip("/")
    return DirectClient(
        target, Address(url.raw_host.decode(), url.port or 80, False, url.netloc.decode(), path)
    )
