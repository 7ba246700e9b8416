"""The application of one emulated server: it finds the handler of a request and sends refusals."""

from __future__ import annotations

import json
import logging
from typing import TypeAlias

from stretto.emulate.gate import Gate
from stretto.http.application import TaskApplication
from stretto.http.byte_budget import ByteBudget
from stretto.http.client.headers import Headers
from stretto.http.client_request import ClientRequest, RequestLimits, path_of
from stretto.http.refusals import TOO_LARGE, NotAllowed, Refused
from stretto.http.request import JSON_TYPE, HttpRequest
from stretto.http.routes import Handler, Route, Routes
from stretto.http.served import Answerable, WholeAnswer
from stretto.wire.errors import ApiError, RequestRefused, malformed, no_such_path, wrong_method

HandlerTable: TypeAlias = dict[tuple[str, str], Handler[HttpRequest]]
"""Handlers by method and path. Paths have no slash at their ends."""

CONTROL = "/emulator/"
"""Beginning of the paths that control the emulation. Faults leave them alone."""
_MAX_BODY_BYTES = 64_000_000
_MAX_BODY_S = 600.0
_MAX_HELD_BYTES = 4_000_000_000
_BUG = ApiError(500, "The server has failed.", "InternalServerError")
_LOG = logging.getLogger(__name__)


class EmulatedApp(TaskApplication[HttpRequest]):
    """What answers the requests of an emulated server.

    Args:
        gate: closed by faults.
    """

    def __init__(self, handlers: HandlerTable, gate: Gate) -> None:
        super().__init__(ByteBudget(_MAX_HELD_BYTES))
        self._routes: Routes[HttpRequest] = Routes(heads=False)
        self._routes.add(*(Route(method, f"/{path}", one) for (method, path), one in handlers.items()))
        self._gate = gate
        self._limits = RequestLimits(_MAX_BODY_BYTES, _MAX_BODY_S, self.budget)

    def admit(self, request: ClientRequest) -> RequestLimits:
        """Return the limits of a request, which are the same for all."""
        return self._limits

    def refusal(self, error: Refused, request: ClientRequest) -> WholeAnswer:
        """Return the answer to a request that is refused before it is served."""
        answer = ApiError(error.status, error.message, "Bad Request", None, error.retry_after_s)
        if error.code == TOO_LARGE:
            answer = malformed("", error.message).answer
        return answer.status, _headers(answer), json.dumps(answer.to_json()).encode()

    def request_of(self, connection: Answerable, received: ClientRequest) -> HttpRequest:
        """Return the request that a handler gets."""
        path, query = path_of(received.target)
        received.path = "/" + path.strip("/")
        return HttpRequest(connection, received, query)

    async def handle(self, request: HttpRequest) -> None:
        """Answer one HTTP request."""
        if not request.path.startswith(CONTROL):
            await self._gate.enter()
        try:
            route, request.parts = self._routes.find(request.method, request.path)
        except NotAllowed as error:
            raise wrong_method(request.method, request.path, error.methods) from error
        except Refused as error:
            raise no_such_path(request.path) from error
        await route.handler(request)

    async def fail(self, request: HttpRequest, error: Exception) -> None:
        """Send a refusal, or that the server has failed."""
        answer = error.answer if isinstance(error, RequestRefused) else _BUG
        if answer is _BUG:
            _LOG.error("a request to %r has failed", request.path, exc_info=error)
        if not request.has_begun:
            body = json.dumps(answer.to_json()).encode()
            await request.answer(body, answer.status, headers=_headers(answer)[1:])


def _headers(answer: ApiError) -> Headers:
    more = [(name.lower().encode(), value.encode()) for name, value in answer.headers().items()]
    return [(b"content-type", JSON_TYPE), *more]
