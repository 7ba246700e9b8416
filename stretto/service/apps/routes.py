"""The routes of deployed apps.

GET    /v1/apps                                   names of the apps
GET    /v1/apps/{app}                             inputs, outputs, and settings with their defaults
POST   /v1/apps/{app}/queries                     run the app: answer with outputs, with a stream, or at once
GET    /v1/apps/{app}/queries/{query}             status, and outputs or error
GET    /v1/apps/{app}/queries/{query}/events      text as it is generated, from its beginning
DELETE /v1/apps/{app}/queries/{query}             cancel
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from stretto.http import ClientLeft
from stretto.http.refusals import draining
from stretto.http.routes import Route
from stretto.model.errors import QueryEnded, StrettoError
from stretto.programs.wire.json_parts import json_parts
from stretto.service.apps.app_service import AppService
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.apps.query_request import CheckedRequest, QueryRequest, checked_request
from stretto.service.apps.query_table import AppQuery
from stretto.service.bodies import off_loop
from stretto.service.refusals import not_found
from stretto.service.request import ServiceRequest
from stretto.service.sizes import is_large

_QUERIES = "/v1/apps/{app}/queries"
_QUERY = f"{_QUERIES}/{{query}}"


class AppRoutes:
    """The routes of deployed apps.

    Args:
        is_draining: whether the service takes no new work.
    """

    def __init__(self, service: AppService, is_draining: Callable[[], bool]) -> None:
        self._service = service
        self._is_draining = is_draining

    @property
    def routes(self) -> tuple[Route[ServiceRequest], ...]:
        """The routes."""
        return (
            Route("GET", "/v1/apps", self._list),
            Route("GET", "/v1/apps/{app}", self._describe),
            Route("POST", _QUERIES, self._start),
            Route("GET", _QUERY, self._status),
            Route("GET", f"{_QUERY}/events", self._events),
            Route("DELETE", _QUERY, self._cancel),
        )

    async def _list(self, request: ServiceRequest) -> None:
        await request.answer_json({"apps": list(self._service.apps)})

    async def _describe(self, request: ServiceRequest) -> None:
        await request.answer_json(self._app(request).description())

    async def _start(self, request: ServiceRequest) -> None:
        app = self._app(request)
        if self._is_draining():
            raise draining()
        started, asked = await self._started(request, app)
        if asked.background:
            await self._answer_status(request, started, 202)
            return
        try:
            if asked.stream:
                await request.unless_left(self._send_events(request, app, started))
            else:
                await request.unless_left(self._service.wait(started))
                await self._answer_status(request, started)
        except ClientLeft:
            started.query.cancel()
            raise

    async def _started(self, request: ServiceRequest, app: DeployedApp) -> tuple[AppQuery, QueryRequest]:
        """Start the query that a request asks for. What that was read from is freed then."""
        checked = await self._checked(request, app)
        started = await request.unless_left(self._service.start(app, checked, request.tenant))
        return started, checked.asked

    async def _checked(self, request: ServiceRequest, app: DeployedApp) -> CheckedRequest:
        content_type, body = request.header(b"content-type"), await request.body()
        return await off_loop(len(body), lambda: checked_request(app.template, content_type, body))

    async def _status(self, request: ServiceRequest) -> None:
        await self._answer_status(request, self._query(request))

    async def _events(self, request: ServiceRequest) -> None:
        await request.unless_left(self._send_events(request, self._app(request), self._query(request)))

    async def _cancel(self, request: ServiceRequest) -> None:
        found = self._query(request)
        found.query.cancel()
        with contextlib.suppress(StrettoError):
            await self._service.wait(found)
        await self._answer_status(request, found)

    async def _answer_status(self, request: ServiceRequest, found: AppQuery, status: int = 200) -> None:
        content = await self._status_of(request, found)
        if is_large(content):
            await request.answer_parts(lambda: json_parts(content), status)
        else:
            await request.answer_json(content, status)

    async def _status_of(self, request: ServiceRequest, found: AppQuery) -> dict[str, object]:
        """Return the status of a query. Its outputs count as held for the request from now on."""
        request.hold_value(found, found.num_bytes)
        return await self._service.status(found)

    async def _send_events(self, request: ServiceRequest, app: DeployedApp, query: AppQuery) -> None:
        """Send the text of a query as it is generated, and at the end its status with all outputs."""
        await request.send_event({"id": query.id, "status": "running"})
        async for output, text in self._service.text_events(app, query.query):
            await request.send_text_events(text, output=output)
        with contextlib.suppress(QueryEnded):
            await self._service.wait(query)
        content = await self._status_of(request, query)
        await request.send_event_parts(lambda: json_parts(content))
        await request.end_events()

    def _app(self, request: ServiceRequest) -> DeployedApp:
        name = request.parts[0]
        if name not in self._service.apps:
            raise not_found(f"app {name!r:.80}; there are {', '.join(self._service.apps) or 'none'}")
        return self._service.apps[name]

    def _query(self, request: ServiceRequest) -> AppQuery:
        app = self._app(request)
        found = self._service.find(app, request.parts[1], request.tenant.name)
        if found is None:
            raise not_found(f"query {request.parts[1]!r:.80}")
        return found
