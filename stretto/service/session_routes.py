"""The routes of sessions: open, submit, get, set, give up, close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from itertools import chain

import msgspec

from stretto.http.refusals import Refused, draining
from stretto.http.routes import Operation, Route
from stretto.programs.wire.json_parts import value_parts
from stretto.programs.wire.values import value_to_wire
from stretto.service.bodies import decoded_off_loop
from stretto.service.calls import Works
from stretto.service.config import ServiceConfig
from stretto.service.graph_page import as_html, text_of_lines
from stretto.service.openapi import links_of_session, links_of_variable
from stretto.service.places import LastInstances
from stretto.service.request import ServiceRequest
from stretto.service.schema import GetBody, SessionBody, SetBody, SubmitBody
from stretto.service.service_session import ServiceSession
from stretto.service.sessions import Sessions
from stretto.service.sizes import is_large, num_bytes
from stretto.service.tenants import Tenant

_SESSION = msgspec.json.Decoder(SessionBody)
_SUBMIT = msgspec.json.Decoder(SubmitBody)
_GET = msgspec.json.Decoder(GetBody)
_SET = msgspec.json.Decoder(SetBody)
_encode = msgspec.json.Encoder().encode

_VARIABLE = "/v1/sessions/{session}/variables/{variable}"
_TEXT = {"type": "string"}
_OPEN = Operation(
    "open", {"session_id": "string", "idle_s": "number"}, SessionBody, 201, links=links_of_session()
)
_SHOW = Operation("show", {"session_id": "string", "num_variables": "integer", "usage": "object"})
_DRAW = Operation("draw", others={"text/plain": _TEXT, "text/html": _TEXT})
_SUBMITTING = Operation(
    "submit",
    {"session_id": "string", "request_id": "string", "calls": "array"},
    SubmitBody,
    links=links_of_session(),
)
_GETTING = Operation("get", {"semantic_var_id": "string"}, GetBody, others={"text/event-stream": {}})
_SETTING = Operation("set", {"semantic_var_id": "string"}, SetBody, links=links_of_variable())


class SessionRoutes:
    """The routes of sessions.

    Args:
        is_draining: whether the service takes no new work.
    """

    def __init__(
        self,
        config: ServiceConfig,
        sessions: Sessions,
        works: Works,
        places: LastInstances,
        is_draining: Callable[[], bool],
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._works = works
        self._places = places
        self._is_draining = is_draining

    @property
    def routes(self) -> tuple[Route[ServiceRequest], ...]:
        """The routes."""
        return (
            Route("POST", "/v1/sessions", self._open, operation=_OPEN),
            Route("GET", "/v1/sessions/{session}", self._show, operation=_SHOW),
            Route("GET", "/v1/sessions/{session}/graph", self._draw, operation=_DRAW),
            Route("DELETE", "/v1/sessions/{session}", self._close, operation=Operation("close", {})),
            Route("DELETE", _VARIABLE, self._drop, operation=Operation("drop", {})),
            Route("POST", "/v1/submit", self._submit, operation=_SUBMITTING),
            Route("POST", "/v1/get", self._get, operation=_GETTING),
            Route("POST", "/v1/set", self._set, operation=_SETTING),
        )

    async def _open(self, request: ServiceRequest) -> None:
        self._check_accepts()

        async def run(content: bytes) -> object:
            given = content or b"{}"
            body = await decoded_off_loop(_SESSION, given)
            opened = await self._sessions.open(request.tenant, body)
            return {"session_id": opened.id, "idle_s": self._config.session_idle_s}

        await self._once(request, run, 201)

    async def _show(self, request: ServiceRequest) -> None:
        session = self._session(request)
        shown: dict[str, object] = {"session_id": session.id, "num_variables": session.num_variables}
        await request.answer_json({**shown, "usage": asdict(session.usage)})

    async def _draw(self, request: ServiceRequest) -> None:
        session = self._session(request)
        lines = session.lines(self._places)
        if "text/html" in request.header(b"accept"):
            await request.answer(
                as_html(lines, session.id).encode(), content_type=b"text/html; charset=utf-8"
            )
        else:
            await request.answer(text_of_lines(lines).encode(), content_type=b"text/plain; charset=utf-8")

    async def _close(self, request: ServiceRequest) -> None:
        await self._sessions.close(self._session(request))
        await request.answer_json({})

    async def _drop(self, request: ServiceRequest) -> None:
        await self._session(request).drop(request.parts[1])
        await request.answer_json({})

    async def _submit(self, request: ServiceRequest) -> None:
        self._check_accepts()

        async def run(content: bytes) -> object:
            body = await decoded_off_loop(_SUBMIT, content)
            session = await self._session_of(body, request.tenant)
            try:
                outputs = await session.submit(body, self._works, session.used_s, len(content))
            except BaseException:
                if body.session_id is msgspec.UNSET:
                    await self._sessions.close(session)
                raise
            return {"session_id": session.id, "request_id": request.id, "calls": outputs}

        await self._once(request, run)

    async def _set(self, request: ServiceRequest) -> None:
        async def run(content: bytes) -> object:
            body = await decoded_off_loop(_SET, content)
            session = self._sessions.find(body.session_id, request.tenant)
            await session.provide(body.semantic_var_id, body.value, len(content))
            return {"semantic_var_id": body.semantic_var_id}

        await self._once(request, run)

    async def _get(self, request: ServiceRequest) -> None:
        content = await request.body()
        body = await decoded_off_loop(_GET, content)
        session = self._sessions.find(body.session_id, request.tenant)
        if body.stream:
            await request.unless_left(self._stream(request, session, body))
            return
        has_come = session.is_settled(body.semantic_var_id)
        waiting = session.get(body.semantic_var_id, body.criteria, body.timeout_s, self._config.max_wait_s)
        value = await (waiting if has_come else request.unless_left(waiting))
        if not is_large(value):
            await request.answer_json(
                {"semantic_var_id": body.semantic_var_id, "value": value_to_wire(value)}
            )
            return
        request.hold_value(value, await asyncio.to_thread(num_bytes, value))
        begin = b'{"semantic_var_id":%s,"value":' % _encode(body.semantic_var_id)
        await request.answer_parts(lambda: chain((begin,), value_parts(value), (b"}",)))

    async def _stream(self, request: ServiceRequest, session: ServiceSession, body: GetBody) -> None:
        pieces = session.stream(body.semantic_var_id, body.criteria, self._config.max_wait_s)
        async with aclosing(pieces):  # type: ignore[type-var]
            async for piece in pieces:
                await request.send_text_events(piece)
        await request.end_events()

    async def _once(
        self, request: ServiceRequest, run: Callable[[bytes], Awaitable[object]], status: int = 200
    ) -> None:
        """Execute a request once for each idempotency key; a repeated one gets the stored answer."""
        content = await request.body()
        key = request.header(b"idempotency-key")
        if not key:
            await request.answer_json(await run(content), status)
            return

        async def encoded() -> bytes:
            return _encode(await run(content))

        answer = await request.tenant.answered.once(key, request.path, content, encoded)
        await request.answer(answer, status)

    async def _session_of(self, body: SubmitBody, tenant: Tenant) -> ServiceSession:
        """Return the session that a request names; a new one if it names none."""
        if isinstance(body.session_id, str):
            if body.session is not msgspec.UNSET:
                raise Refused(
                    422, "invalid", "a request with a session_id opens no session; leave session out"
                )
            return self._sessions.find(body.session_id, tenant)
        settings = body.session if isinstance(body.session, SessionBody) else SessionBody()
        return await self._sessions.open(tenant, settings)

    def _session(self, request: ServiceRequest) -> ServiceSession:
        return self._sessions.find(request.parts[0], request.tenant)

    def _check_accepts(self) -> None:
        if self._is_draining():
            raise draining()
