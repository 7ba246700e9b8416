"""Tools of MCP servers (Model Context Protocol) as tools of agents, by the official SDK `mcp`.

The SDK speaks both the protocol of 2025-11-25 and that of 2026-07-28, whichever the server does.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stretto.model.errors import ConfigError, EngineFailure, EngineUnavailable
from stretto.model.extras import imports_of
from stretto.model.foreign import described, raised
from stretto.model.tools import BadArguments, Tool

if TYPE_CHECKING:
    from mcp import Client

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MOST_PAGES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPServer:
    """An MCP server: a command that is started and spoken to over its input and output, or a URL.

    Attributes:
        command: the program and its arguments; () for a server with a URL.
        url: URL of a server that speaks streamable HTTP.
        headers: HTTP headers of each request, such as one with a key.
        env: variables that the command gets besides the usual ones.
        prefix: text before the names of its tools, where several servers have tools of the same name.
        effects: whether all its tools have effects; None goes by what the server says of each. A tool of
            which the server does not say that it only reads has effects.
        timeout_s: seconds that a call may take.
        start_s: seconds that the start and the list of tools may take.
    """

    command: Sequence[str] = ()
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    effects: bool | None = None
    timeout_s: float = 60.0
    start_s: float = 60.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigError("an MCP server has either a command or a url")

    @property
    def name(self) -> str:
        """Name of the server for messages."""
        return self.url or " ".join(self.command)


class MCPTools:
    """The tools of an MCP server, while it is connected, in a `with` block:

        with MCPTools(MCPServer(command=["python", "server.py"])) as tools:
            app = agent([*tools, add])

    The connection has a thread of its own, so that any engine may call the tools.
    """

    def __init__(self, server: MCPServer) -> None:
        self._server = server
        self._ready: Future[tuple[Tool, ...]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> tuple[Tool, ...]:
        """Connect, and return the tools.

        Raises:
            ConfigError: the package mcp is missing, or a tool has no usable schema.
            EngineUnavailable: the server cannot be started or reached, or says nothing in time.
        """
        with imports_of("mcp", "an MCP server"):
            import mcp  # noqa: F401
        if self._thread is not None:
            raise ConfigError(f"{self._server.name}: the tools of an MCP server are entered once")
        self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)
        self._thread.start()
        try:
            return self._ready.result(self._server.start_s)
        except TimeoutError as error:
            self.close()
            raise EngineUnavailable(
                f"{self._server.name}: no list of tools within {self._server.start_s:g} s"
            ) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and a server that was started."""
        if self._loop is not None and self._end is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)
        if self._thread is not None:
            self._thread.join(self._server.start_s)

    def _run(self) -> None:
        """Run the connection, from its start to its end, on the thread of its own."""
        try:
            asyncio.run(self._serve())
        except raised() as error:
            if not self._ready.done():
                failure = EngineUnavailable(f"{self._server.name}: {_cause(error)}")
                known = error if isinstance(error, ConfigError) else failure
                self._ready.set_exception(known)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with _connected(self._server) as client:
            tools = [_tool(self._server, one, self._call(client, one.name)) for one in await _listed(client)]
            self._ready.set_result(tuple(tools))
            await self._end.wait()

    def _call(self, client: Client, name: str) -> Callable[[str], Awaitable[object]]:
        """Return the function of a tool of the server."""

        async def call(given: str) -> object:
            arguments = _arguments(given)
            loop = self._loop
            if loop is None or loop.is_closed() or (self._end is not None and self._end.is_set()):
                raise EngineUnavailable(f"{self._server.name}: the connection has ended")
            running = asyncio.run_coroutine_threadsafe(client.call_tool(name, arguments), loop)
            return _result(await asyncio.wrap_future(running))

        return call


@asynccontextmanager
async def _connected(server: MCPServer) -> AsyncIterator[Client]:
    from mcp import Client, StdioServerParameters

    if server.command:
        program, *arguments = server.command
        started = StdioServerParameters(command=program, args=arguments, env=dict(server.env))
        async with Client(started) as client:
            yield client
        return
    from httpx2 import AsyncClient, Timeout
    from mcp.client.streamable_http import streamable_http_client

    timeout = Timeout(server.timeout_s, connect=server.start_s)
    async with (
        AsyncClient(headers=dict(server.headers), timeout=timeout) as sender,
        Client(streamable_http_client(server.url, http_client=sender)) as client,
    ):
        yield client


async def _listed(client: Client) -> list[Any]:
    """Return all tools that a server lists, page by page."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return found


def _tool(server: MCPServer, listed: Any, function: Callable[[str], Awaitable[object]]) -> Tool:
    hints = listed.annotations
    only_reads = bool(hints is not None and hints.read_only_hint)
    effects = not only_reads if server.effects is None else server.effects
    description = " ".join((listed.description or listed.title or listed.name).split())
    return Tool(
        _NO_NAME.sub("_", f"{server.prefix}{listed.name}")[:64],
        description,
        function,
        effects=effects,
        schema=json.dumps(listed.input_schema, ensure_ascii=False),
        timeout_s=server.timeout_s,
        idempotent=effects and bool(hints is not None and hints.idempotent_hint),
    )


def _arguments(given: str) -> dict[str, Any]:
    try:
        arguments = json.loads(given or "{}", strict=False)
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"the arguments are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise BadArguments("the arguments must be a JSON object")
    return arguments


def _result(result: Any) -> object:
    """Return the result of a call as text, or as data where a server gives nothing else.

    Raises:
        EngineFailure: the tool has failed.
    """
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    text = "\n".join(parts)
    if result.is_error:
        raise EngineFailure(text or "the tool failed")
    return text or result.structured_content


def _cause(error: BaseException) -> str:
    """Return what went wrong: of a group of exceptions, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return described(error)
