"""The two ways in which requests get to an HTTP server, with the same errors.

Requests to a plain `http://` URL go out on the connections of this package (`direct.py`). All others, which
need TLS, a password or a proxy, go out through httpx (`by_httpx.py`), at several times the processor time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import httpx


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how long to wait for it.

    Attributes:
        url: URL to which paths of requests are added.
        name: name of the server in messages.
        headers: headers of each request.
        timeout_s: longest silence within an answer.
        connect_timeout_s: longest time until there is a connection.
    """

    url: httpx.URL
    name: str
    headers: dict[str, str]
    timeout_s: float
    connect_timeout_s: float


class HttpAnswer(Protocol):
    """The answer of a server whose head has come."""

    @property
    def status(self) -> int:
        """Status code."""
        ...

    def header(self, name: str) -> str:
        """Return the value of a header, whose name is in lower case; "" if there is none."""
        ...

    def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they come.

        Raises:
            EngineUnavailable: the connection breaks off.
            EngineTimeout: nothing has come for the longest silence.
            BadReply: the body is encoded in a way that was not asked for.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back, or close it if the answer has not ended."""
        ...


class HttpClient(Protocol):
    """A client of one server."""

    async def send(self, method: str, path: str, body: bytes | None) -> HttpAnswer:
        """Send a request, with a `body` of JSON if there is one; return the answer when its head has come.

        Raises:
            EngineUnreachable: the server takes no connection.
            EngineUnavailable: it breaks off before the end of the head, or answers no HTTP.
            EngineTimeout: it is silent.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
