"""What a connection asks of the object that answers a request."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from stretto.http.client.headers import Headers

WholeAnswer: TypeAlias = tuple[int, Headers, bytes]
"""Status, headers and body of an answer."""


class Served(Protocol):
    """An object that answers a request."""

    def client_left(self) -> None:
        """Handle that the client has closed its connection."""
        ...

    def pause(self) -> None:
        """Bring no more of the answer until `resume`: the client does not read it."""
        ...

    def resume(self) -> None:
        """Go on with the answer."""
        ...

    def probe(self) -> None:
        """Write bytes without a meaning to the client, if the answer that has begun has room for them."""
        ...
