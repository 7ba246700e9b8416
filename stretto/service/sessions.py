"""The open sessions of a service, by id: they expire when nobody uses them."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict

from stretto.runtime.runtime import Runtime
from stretto.service.refusals import not_found
from stretto.service.schema import SessionBody
from stretto.service.service_session import ServiceSession
from stretto.service.tenants import Tenant

_ID_BYTES = 18


class Sessions:
    """The open sessions of a service, those that were used last at the end.

    Args:
        idle_s: seconds without a request after which a session expires.
    """

    def __init__(self, runtime: Runtime, idle_s: float) -> None:
        self._runtime = runtime
        self._idle_s = idle_s
        self._open: OrderedDict[str, ServiceSession] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, tenant: Tenant, body: SessionBody) -> ServiceSession:
        """Open a session.

        Raises:
            Refused: the tenant has too many.
            UserError: there is no such pass.
        """
        tenant.check_session()
        tenant.num_sessions += 1
        try:
            session = await self._runtime.open_session(
                passes=body.passes, deadline_s=body.deadline_s, objective=body.objective, tenant=tenant.name
            )
        except BaseException:
            tenant.num_sessions -= 1
            raise
        session_id = secrets.token_urlsafe(_ID_BYTES)
        opened = ServiceSession(session_id, tenant, self._runtime, session, self._now_s())
        self._open[opened.id] = opened
        if self._timer is None:
            self._watch()
        return opened

    def find(self, session_id: str, tenant: Tenant) -> ServiceSession:
        """Return a session of a tenant, which is used by that.

        Raises:
            Refused: there is none, or it is another tenant's.
        """
        session = self._open.get(session_id)
        if session is None or session.tenant is not tenant:
            raise not_found("such session")
        session.used_s = self._now_s()
        self._open.move_to_end(session_id)
        return session

    async def close(self, session: ServiceSession) -> None:
        """End a session, and forget it."""
        if self._open.pop(session.id, None) is not None:
            session.tenant.num_sessions -= 1
            await session.close()

    def stop(self) -> None:
        """Stop to watch for sessions that expire."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        """End the sessions that have expired, and look again when the next one may have."""
        now_s = self._now_s()
        self._timer = None
        while self._open:
            session = next(iter(self._open.values()))
            due_s = session.used_s + self._idle_s
            if now_s < due_s:
                self._timer = asyncio.get_running_loop().call_at(due_s, self._watch)
                return
            if session.num_readers:
                session.used_s = now_s
                self._open.move_to_end(session.id)
            else:
                self._expire(session)

    def _expire(self, session: ServiceSession) -> None:
        del self._open[session.id]
        session.tenant.num_sessions -= 1
        closing = asyncio.ensure_future(session.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
