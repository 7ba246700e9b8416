"""The application of a service: it finds the route and the tenant of a request, and sends refusals."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from itertools import count
from time import monotonic

from stretto.http.application import TaskApplication
from stretto.http.body_readers import BodyReaders
from stretto.http.client.headers import Headers, value_of
from stretto.http.client_request import ClientRequest, RequestLimits, path_of
from stretto.http.refusals import LARGE_HEAD, SLOW_HEAD, NotAllowed, Refused
from stretto.http.request import JSON_TYPE
from stretto.http.routes import Route, Routes
from stretto.http.served import Answerable, Served, WholeAnswer
from stretto.model.errors import InternalError, StrettoError
from stretto.model.foreign import bug_of
from stretto.model.tasks import Objective
from stretto.operate.request_lines import REQUESTS, log_fields
from stretto.service.config import ServiceConfig
from stretto.service.refusals import NOT_YET, malformed_body
from stretto.service.request import Admitted, ServiceRequest, refusal_answer
from stretto.service.tenants import Tenant, Tenants

_LOG = logging.getLogger("stretto.service")


class ServiceApp(TaskApplication[ServiceRequest]):
    """What answers the requests of a service.

    Attributes:
        tenants: the tenants that may use it.
        routes: table of its routes, to which others may be added.
        other_route: returns the route of a request to a path that is not in the table; None if it has none.
        readers: what reads large bodies beside the event loop.
        on_refused: is told the path and the status of each request that is refused before it is asked of
            anything.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.tenants = Tenants(config)
        super().__init__(self.tenants.budget)
        self.routes: Routes[ServiceRequest] = Routes()
        self.other_route: Callable[[ClientRequest], Route[ServiceRequest] | None] = lambda request: None
        self.readers = BodyReaders()
        self.on_refused: Callable[[str, int], None] = lambda path, status: None
        self._config = config
        self._run = secrets.token_hex(4)
        self._numbers = count(1)

    def admit(self, request: ClientRequest) -> RequestLimits:
        """Find the route and the tenant of a request by its head, and return its limits.

        Raises:
            Refused: there is no such route, or the request brings no key of a tenant.
        """
        request.path, query = path_of(request.target)
        route, parts = self._find(request)
        budget = self.budget
        request.found = Admitted(route, parts, None, query)
        if not route.is_open:
            tenant = self.tenants.find(_authorization(request.headers).decode("latin-1"))
            budget = tenant.budget
            request.found = Admitted(route, parts, tenant, query)
            if request.method == b"POST":
                tenant.count_request(monotonic())
        max_bytes = route.max_body_bytes or self._config.max_body_bytes
        max_body_s = route.max_body_s or self._config.max_body_s
        sink = None if route.sink is None else route.sink(request)
        return RequestLimits(max_bytes, max_body_s, budget, sink)

    def serve_own(
        self, asker: Answerable, request: ClientRequest, owner: Tenant, objective: Objective
    ) -> Served:
        """Answer a request that the service makes itself in the name of a tenant, as those of clients.

        Args:
            objective: class of the request.

        Raises:
            Refused: there is no such route.
        """
        route, parts = self._find(request)
        request.found = Admitted(route, parts, owner, objective=objective)
        return self.serve(asker, request)

    def has_route(self, method: str, path: str) -> bool:
        """Return whether requests to a path are answered."""
        try:
            self._find(ClientRequest(method.encode(), path.encode(), path))
        except Refused:
            return False
        return True

    def _find(self, request: ClientRequest) -> tuple[Route[ServiceRequest], tuple[str, ...]]:
        try:
            return self.routes.find(request.method.decode("latin-1"), request.path)
        except NotAllowed:
            raise
        except Refused:
            if (other := self.other_route(request)) is None:
                raise
            return other, ()

    def refusal(self, error: Refused, request: ClientRequest) -> WholeAnswer | None:
        """Return the answer to a request that is refused before it is served; None if its head has not come
        in time: there is no request that an answer would belong to.
        """
        if error.code == SLOW_HEAD:
            return None
        if error.code == LARGE_HEAD:
            error = malformed_body(error.message)
        request_id = self._next_id()
        status, headers, body = refusal_answer(error, request_id)
        self.on_refused(request.path, status)
        _log_refusal(request, request_id, status, error)
        return status, [(b"content-type", JSON_TYPE), *headers], body

    def request_of(self, connection: Answerable, received: ClientRequest) -> ServiceRequest:
        """Return the request that a handler gets."""
        return ServiceRequest(connection, received, self._next_id(), self.readers)

    async def handle(self, request: ServiceRequest) -> None:
        """Answer one HTTP request."""
        await request.admitted.route.handler(request)

    async def fail(self, request: ServiceRequest, error: Exception) -> None:
        """Send an error of a handler."""
        if isinstance(error, StrettoError) and not isinstance(error, InternalError):
            if isinstance(error, Refused) and error.code != NOT_YET:
                self.on_refused(request.admitted.route.path, error.status)
            await request.refuse(error)
            return
        _LOG.error("request %s: %s", request.id, error, exc_info=error)
        await request.refuse(error if isinstance(error, InternalError) else bug_of(error))

    def _next_id(self) -> str:
        return f"{self._run}-{next(self._numbers)}"


def _log_refusal(request: ClientRequest, request_id: str, status: int, error: Refused) -> None:
    """Log a request that has not come to a handler. Of one without a route, the path is left out, as
    strangers choose it.
    """
    if not REQUESTS.isEnabledFor(logging.INFO):
        return
    found = request.found if isinstance(request.found, Admitted) else None
    tenant = None if found is None else found.tenant
    log_fields(
        {
            "id": request_id,
            "method": request.method.decode("latin-1"),
            "path": "" if found is None else found.route.path,
            "tenant": "" if tenant is None else tenant.name,
            "status": status,
            "error": error.code,
        }
    )


def _authorization(headers: Headers) -> bytes:
    """Return the key of a request as the header `Authorization` has it.

    Clients of Anthropic's and Azure's APIs send theirs by headers of their own.
    """
    if (found := value_of(headers, b"authorization")) is not None:
        return found
    keys = (value_of(headers, name) for name in (b"x-api-key", b"api-key"))
    return next((b"Bearer " + key for key in keys if key), b"")
