"""A client of one server at any URL, by httpx: with TLS, passwords, and the proxies of the environment."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from stretto.http.client.client import Target
from stretto.model.errors import BadReply, EngineTimeout, EngineUnavailable, EngineUnreachable


class HttpxClient:
    """A client of one server.

    Raises:
        httpx.InvalidURL, ValueError, ImportError, OSError: the URL, a header, or the environment's proxies or
            certificates cannot be used.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client = httpx.AsyncClient(
            base_url=target.url,
            headers=target.headers,
            timeout=httpx.Timeout(target.timeout_s, connect=target.connect_timeout_s, pool=None),
            limits=httpx.Limits(max_connections=None),
        )

    async def send(self, method: str, path: str, body: bytes | None) -> HttpxAnswer:
        """Send a request and return the answer when its head has come.

        Errors are those of `Client.send`.
        """
        kind = None if body is None else {"content-type": "application/json"}
        request = self._client.build_request(method, path, content=body, headers=kind)
        try:
            return HttpxAnswer(await self._client.send(request, stream=True), self._target)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise EngineUnreachable(f"cannot reach {self._target.name}: {_text(error)}") from error
        except httpx.TimeoutException as error:
            raise _silence(self._target) from error
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"{self._target.name} gave no answer: {_text(error)}") from error

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class HttpxAnswer:
    """An answer on its way."""

    def __init__(self, response: httpx.Response, target: Target) -> None:
        self._response = response
        self._target = target

    @property
    def status(self) -> int:
        """Status code."""
        return self._response.status_code

    def header(self, name: str) -> str:
        """Return the value of a header; "" if there is none."""
        value: str = self._response.headers.get(name, "")
        return value

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they come. Errors are those of `Answer.parts`."""
        try:
            async for part in self._response.aiter_bytes():
                yield part
        except httpx.DecodingError as error:
            raise BadReply(f"{self._target.name} sent what cannot be decoded: {error}") from error
        except httpx.TimeoutException as error:
            raise _silence(self._target) from error
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"{self._target.name} broke off: {_text(error)}") from error

    async def aclose(self) -> None:
        """Give the connection back, or close it if the answer has not ended."""
        await self._response.aclose()


def _silence(target: Target) -> EngineTimeout:
    return EngineTimeout(f"{target.name} was silent for {target.timeout_s} s")


def _text(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
