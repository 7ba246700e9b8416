"""Requests of a client to a service: JSON over HTTP, sent again where that is safe."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any

import httpx

from stretto.model.errors import BadReply, EngineUnavailable, StrettoError, UserError
from stretto.programs.wire.errors import error_from_wire
from stretto.wire.sse import EventDecoder

_MAX_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
_PASSING = (429, 503)


class NotYet(Exception):
    """The service has waited for a variable as long as it waits for one request."""


class HttpCalls:
    """Requests to one service.

    A request that meets no server, a server that drains, or a limit is sent again, with pauses.

    Raises:
        UserError: it is no URL of HTTP.
    """

    def __init__(self, url: str, api_key: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"a service has a URL like http://HOST:PORT, got {url!r:.200}")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._client = httpx.AsyncClient(
                base_url=url.rstrip("/"),
                headers=headers,
                timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
                verify=_certificates(),
                limits=httpx.Limits(max_connections=None),
            )
        except (httpx.InvalidURL, UnicodeError) as error:
            raise UserError(f"the URL or the key of a service cannot be used: {error}") from error
        self._url = url

    async def post(self, path: str, body: Mapping[str, object], *, key: str = "") -> dict[str, Any]:
        """Send a body of JSON and return that of the answer.

        Args:
            key: idempotency key, with which the service does once what it is asked several times.

        Raises:
            NotYet: the service has waited as long as it does.
            UserError: the body has no form in JSON.
            StrettoError: the error that the service answers.
            EngineUnavailable: the service cannot be reached.
        """
        try:
            content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError) as error:
            raise UserError(f"what goes to the service cannot be written as JSON: {error}") from error
        headers = {"content-type": "application/json", **({"idempotency-key": key} if key else {})}
        return _read(await self._send("POST", path, content, headers))

    async def get(self, path: str) -> dict[str, Any]:
        """Return the JSON at a path. Raises as `post` does."""
        return _read(await self._send("GET", path))

    async def delete(self, path: str) -> None:
        """Delete something. Raises as `post` does."""
        _read(await self._send("DELETE", path))

    async def stream(self, path: str, body: Mapping[str, object]) -> AsyncIterator[str]:
        """Send a body of JSON and yield the texts of the events of the answer. Raises as `post` does."""
        try:
            async with self._client.stream("POST", path, json=body) as response:
                if response.status_code >= 400:
                    await response.aread()
                    _read(response)
                decoder = EventDecoder(max_line_bytes=1 << 30)
                async for received in response.aiter_raw():
                    for data in decoder.feed(received):
                        event = json.loads(data)
                        if "error" in event:
                            raise error_from_wire(event["error"], 500)
                        yield event["text"]
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if not decoder.is_done:
            raise EngineUnavailable(f"the service at {self._url} broke off a stream")

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _send(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            is_last = attempt == _MAX_ATTEMPTS
            try:
                response = await self._client.request(method, path, content=content, headers=headers)
            except httpx.TransportError as error:
                if is_last:
                    raise self._unreachable(error) from error
                wait_s = pause_s
            else:
                if response.status_code not in _PASSING or is_last:
                    return response
                wait_s = max(pause_s, _retry_after_s(response))
            await asyncio.sleep(min(wait_s, _MAX_PAUSE_S))
            pause_s *= 2
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, error: Exception) -> EngineUnavailable:
        return EngineUnavailable(
            f"the service at {self._url} cannot be reached: {error or type(error).__name__}"
        )


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates that all clients of this process trust; reading them takes 50 ms."""
    return httpx.create_ssl_context()


def _read(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
        if response.status_code < 400:
            if isinstance(body, dict):
                return body
        else:
            error: StrettoError = error_from_wire(body["error"], response.status_code)
            if body["error"].get("code") == "not_yet":
                raise NotYet
            raise error
    except (ValueError, LookupError, TypeError, AttributeError) as cause:
        raise BadReply(
            f"the service answered with status {response.status_code} and no JSON of its form"
        ) from cause
    raise BadReply(f"the service answered with {type(body).__name__} in place of an object")


def _retry_after_s(response: httpx.Response) -> float:
    try:
        seconds = float(response.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0
