"""What a connection asks of the server that it belongs to, and of the object that answers a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from stretto.http.byte_budget import ByteBudget
from stretto.http.client.headers import Headers
from stretto.http.client_request import ClientRequest, RequestLimits
from stretto.http.refusals import Refused

WholeAnswer: TypeAlias = tuple[int, Headers, bytes]
"""Status, headers and body of an answer."""


class Answering(Protocol):
    """What an answer is given to: the connection of a client, or whoever asks in this process.

    Attributes:
        is_local: whether the client runs on this machine.
    """

    is_local: bool

    def hold(self, num_bytes: int) -> bool:
        """Count `num_bytes` of the answer as held, in place of those counted before, if they fit; return
        whether.
        """
        ...

    def answer(
        self, status: int, headers: Headers, body: bytes, *, keeps_alive: bool, reason: bytes = b""
    ) -> None:
        """Take a whole answer."""
        ...

    def write(self, data: bytes) -> None:
        """Take bytes of an answer, which begins with its head."""
        ...

    def finished(self, *, keeps_alive: bool) -> None:
        """Note that all of the answer has been written."""
        ...

    def abort(self) -> None:
        """Note that the answer is cut, so that nobody may take it for complete."""
        ...


class Answerable(Answering, Protocol):
    """What a task answers: the connection of a client, or a part of this process that asks as clients do.

    Attributes:
        is_full: whether the answer is not read as fast as it comes.
    """

    is_full: bool

    @property
    def is_open(self) -> bool:
        """Whether an answer can still be sent."""
        ...

    def hand_over(self, serve: Callable[[Answerable, ClientRequest], Served | None]) -> None:
        """Let something else answer the request that is being served."""
        ...


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


class HttpApplication(Protocol):
    """What answers the requests of a server.

    Attributes:
        budget: count of the bytes held for all clients.
    """

    budget: ByteBudget

    def admit(self, request: ClientRequest) -> RequestLimits:
        """Return the limits of a request whose head has come. Raises Refused."""
        ...

    def serve(self, connection: Answerable, request: ClientRequest) -> Served | None:
        """Begin to answer a request, and return what answers it. The answer is written to the connection;
        `finished` is called at its end.
        """
        ...

    def refusal(self, error: Refused, request: ClientRequest) -> WholeAnswer | None:
        """Return the answer to a request that is refused before it is served; None to close the connection
        without one.
        """
        ...
