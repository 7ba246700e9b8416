"""The ASGI application of one emulated server: it finds the handler of a request and sends refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from stretto.emulate.gate import Gate
from stretto.emulate.http import EmulatedExchange, Receive, Scope, Send
from stretto.http import ClientLeft
from stretto.wire.errors import RequestRefused, no_such_path, wrong_method

Handler: TypeAlias = Callable[[EmulatedExchange], Awaitable[None]]
Routes: TypeAlias = Mapping[tuple[str, str], Handler]

CONTROL = "emulator/"
"""Beginning of the paths that control the emulation. Faults leave them alone."""


class EmulatedApp:
    """An ASGI application: handlers by method and path.

    Args:
        gate: closed by faults.
    """

    def __init__(self, routes: Routes, gate: Gate) -> None:
        self._routes = routes
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        exchange = EmulatedExchange(scope, receive, send)
        with suppress(ClientLeft):
            try:
                if not exchange.path.startswith(CONTROL):
                    await self._gate.enter()
                handler = self._routes.get((exchange.method, exchange.path))
                if handler is None:
                    raise self._unknown(exchange.method, exchange.path)
                await handler(exchange)
            except RequestRefused as refused:
                await exchange.refuse(refused.answer)

    def _unknown(self, method: str, path: str) -> RequestRefused:
        allowed = [known for known, where in self._routes if where == path]
        return wrong_method(method, f"/{path}", allowed) if allowed else no_such_path(f"/{path}")
