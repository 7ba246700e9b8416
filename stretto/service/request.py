"""One HTTP request at the service: its tenant, what it holds, and the service's forms of answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TypeVar

import msgspec

from stretto.http.admin import ADMIN_ONLY, CHALLENGE
from stretto.http.body_readers import LARGE_BYTES, BodyReaders
from stretto.http.client.headers import Headers
from stretto.http.client_request import ClientRequest
from stretto.http.refusals import NotAllowed, Refused, over_limit
from stretto.http.request import JSON_TYPE, HttpRequest
from stretto.http.routes import Route
from stretto.http.served import Answerable, WholeAnswer
from stretto.model.errors import StrettoError
from stretto.model.record import record
from stretto.model.tasks import Objective
from stretto.operate.request_lines import REQUESTS, log_fields
from stretto.service.refusals import body_of, retry_after_s, status_of
from stretto.service.tenants import Tenant
from stretto.wire.sse import DONE

T = TypeVar("T")

_PIECE_BYTES = 262_144
_EVENT_CHARS = 65_536
_AGAIN_S = 1.0
_LEFT = 499
"""Status in the log of a request whose client has left before there was an answer."""
_NO_STORE: Headers = [(b"cache-control", b"no-store")]
encode_json = msgspec.json.Encoder().encode


@record
class Admitted:
    """What the head of a request says: its route with the parts of the path, its tenant, if it needs one, and
    the query of its URL.

    Attributes:
        objective: class of a request that the service makes itself, which spends none of the tenant's tokens
            of a minute; None for a client's.
    """

    route: Route[ServiceRequest]
    parts: tuple[str, ...]
    tenant: Tenant | None
    query: str = ""
    objective: Objective | None = None


class ServiceRequest(HttpRequest):
    """An HTTP request, and the ways to answer it.

    Attributes:
        id: id of the request, which the answer carries in the header `X-Request-Id`.
        admitted: what its head says.
        told: headers that its answer has besides, a refusal too.
    """

    __slots__ = ("_arrived_s", "_id_header", "_readers", "_values", "admitted", "id", "told")

    def __init__(
        self, connection: Answerable, received: ClientRequest, request_id: str, readers: BodyReaders
    ) -> None:
        self.admitted: Admitted = received.found
        super().__init__(connection, received, self.admitted.query)
        self._readers = readers
        self.id = request_id
        self.parts = self.admitted.parts
        self._id_header = (b"x-request-id", request_id.encode())
        self.told: Headers = []
        self._values: list[object] = []
        self._arrived_s = monotonic()

    @property
    def tenant(self) -> Tenant:
        """Tenant whose key the request has; only of a route that needs one."""
        tenant = self.admitted.tenant
        assert tenant is not None, "the route needs a key"
        return tenant

    async def read(self, read: Callable[[bytes], T]) -> T:
        """Return what a function makes of the body: of a large one, in another process.

        Args:
            read: function that can be pickled, with a result that can be.

        Raises:
            Refused: reading takes too much time or memory.
            ClientLeft: the client has left before.
            Exception: what `read` raises.
        """
        if self.num_body <= LARGE_BYTES:
            return read(await self.body())
        received = self._received
        reading = self._readers.read(self.num_body, lambda: received.body, read, self.tenant.name)
        return await self.unless_left(reading)

    def claim(self, num_tokens: float) -> Callable[[], None]:
        """Count the request as running, and spend the tokens that it may take; return what ends that. One
        that the service makes itself counts nowhere: it takes what others leave.

        Raises:
            Refused: the tenant has as much running as it may, or has spent its tokens.
        """
        if self.admitted.objective is not None:
            return _do_nothing
        self.tenant.take_request(num_tokens, asyncio.get_running_loop().time())
        return self.tenant.end_request

    def close(self) -> None:
        """Let go of all that the request holds, and log it, unless something else answers and logs it."""
        if REQUESTS.isEnabledFor(logging.INFO) and (self.status or not self.is_answered):
            tenant = self.admitted.tenant
            log_fields(
                {
                    "id": self.id,
                    "method": self.method,
                    "path": self.admitted.route.path,
                    "tenant": "" if tenant is None else tenant.name,
                    "status": self.status or _LEFT,
                    "total_s": round(monotonic() - self._arrived_s, 4),
                }
            )
        for value in self._values:
            self.tenant.values.release(value)
        self._values.clear()
        super().close()

    def hold_value(self, value: object, num_bytes: int) -> None:
        """Count a value that is answered as held, once for all requests of the tenant that answer it. A small
        one does not count.

        Raises:
            Refused: it does not fit.
        """
        if num_bytes <= _PIECE_BYTES:
            return
        if not self.tenant.values.hold(value, num_bytes):
            raise _too_much()
        self._values.append(value)

    async def answer(
        self,
        content: bytes,
        status: int = 200,
        content_type: bytes = JSON_TYPE,
        headers: Headers | None = None,
    ) -> None:
        """Send a whole answer, a long one piece by piece as the client takes it.

        Raises:
            ClientLeft: the client does not read what has been sent.
        """
        more = [self._id_header, *self.told, *(headers or ())]
        num_bytes = len(content)
        if num_bytes <= _PIECE_BYTES:
            await super().answer(content, status, content_type, more)
            return
        if not self.hold(num_bytes):
            raise _too_much()
        pieces = (content[start : start + _PIECE_BYTES] for start in range(0, num_bytes, _PIECE_BYTES))
        await self.answer_pieces(pieces, num_bytes, status, [(b"content-type", content_type), *more])

    async def answer_parts(self, parts: Callable[[], Iterable[bytes]], status: int = 200) -> None:
        """Send a long answer of JSON, which is never held as a whole. Its parts are made in threads as the
        client takes them.

        Args:
            parts: makes the parts; called twice, at first to measure them.

        Raises:
            ClientLeft: the client does not read what has been sent.
        """
        if not self.hold(_PIECE_BYTES):
            raise _too_much()
        length = await asyncio.to_thread(lambda: sum(map(len, parts())))
        self.begin(status, [(b"content-type", JSON_TYPE), self._id_header], length)
        await _send_parts(self, parts)
        self.end()

    async def answer_json(self, content: object, status: int = 200) -> None:
        """Send a value as JSON."""
        await self.answer(encode_json(content), status)

    async def refuse(self, error: StrettoError) -> None:
        """Send an error; as an event, if a stream of events has begun."""
        if self.is_answered:
            return
        if self.has_begun and not self.is_events:
            return  # the connection is cut
        if self.has_begun:
            self.end(b"data: " + encode_json(body_of(error, self.id)) + b"\n\n" + DONE)
            return
        status, headers, body = refusal_answer(error, self.id)
        await super().answer(body, status, headers=[*headers, *self.told])

    async def send_event(self, event: object, kind: str = "") -> bytes:
        """Send an event of a stream (server-sent events), which the first one begins; return its bytes.

        Args:
            kind: type of the event; "" for none.

        Raises:
            ClientLeft: the client does not read what has been sent, or has asked for the head alone.
        """
        self._begin_events()
        head = b"event: %b\n" % kind.encode() if kind else b""
        written = head + b"data: " + encode_json(event) + b"\n\n"
        await self.send(written)
        return written

    async def send_text_events(self, text: str, **fields: str) -> None:
        """Send more of a text as one or several events. Raises as `send_event`; Refused if a long one does
        not fit into what the tenant may hold.
        """
        self.hold_value(text, len(text))
        for start in range(0, len(text), _EVENT_CHARS):
            await self.send_event({**fields, "text": text[start : start + _EVENT_CHARS]})

    async def send_event_parts(self, parts: Callable[[], Iterable[bytes]]) -> None:
        """Send a long event of JSON, as `answer_parts` sends an answer. Raises as `send_event`."""
        self._begin_events()
        await self.send(b"data: ")
        await _send_parts(self, parts)
        await self.send(b"\n\n")

    async def end_events(self, last: bytes = DONE) -> None:
        """End a stream of events; `last` stands behind them."""
        self._begin_events()
        self.end(last)

    def _begin_events(self) -> None:
        if not self.has_begun:
            self.begin_events([self._id_header, *self.told, *_NO_STORE])


async def _send_parts(request: HttpRequest, parts: Callable[[], Iterable[bytes]]) -> None:
    left = iter(parts())
    while part := await asyncio.to_thread(next, left, b""):
        await request.send(part)


def _do_nothing() -> None:
    return


def refusal_answer(error: StrettoError, request_id: str) -> WholeAnswer:
    """Return the answer that tells an error. Its content type is left to whoever sends it."""
    headers: Headers = [(b"x-request-id", request_id.encode())]
    if (again_s := retry_after_s(error)) is not None:
        headers.append((b"retry-after", b"%d" % again_s))
    if isinstance(error, Refused) and error.code == ADMIN_ONLY:
        headers.append(CHALLENGE)
    if isinstance(error, NotAllowed):
        headers.append((b"allow", ", ".join(error.methods).encode()))
    return status_of(error), headers, encode_json(body_of(error, request_id))


def _too_much() -> Refused:
    return over_limit("the service holds as many bytes of requests as it may", _AGAIN_S)
