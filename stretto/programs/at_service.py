"""Connection of a client to a service.

What a program submits, sets and gives up goes there over HTTP, in order. One such request of a session is on
its way at a time; what comes up meanwhile goes along in the next. So calls that are submitted one by one
share requests where the network is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from stretto.model.errors import UserError
from stretto.model.tasks import Usage
from stretto.programs.fragment import WaitingCall, Work
from stretto.programs.http_calls import HttpCalls
from stretto.programs.remote_session import RemoteSession
from stretto.runtime.home_process import HomeProcess
from stretto.runtime.loop_thread import LoopThread, run_on

T = TypeVar("T")

_OPTIONS = ("passes", "deadline_s", "objective")


class AtService:
    """A connection to a service.

    Args:
        options: keywords of `Runtime.open_session` but `tenant`, which the key decides.

    Raises:
        UserError: it is no URL of HTTP, or an option is unknown.
    """

    def __init__(self, url: str, api_key: str, options: Mapping[str, Any]) -> None:
        if unknown := [name for name in options if name not in _OPTIONS]:
            raise UserError(
                f"a client of a service has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}"
            )
        self._calls = HttpCalls(url, api_key)
        self._options = options
        self._home: HomeProcess | None = None
        self._thread: LoopThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: RemoteSession | None = None

    def run_on_loop(self, coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the event loop of the session: that of `async with`, or one on a thread
        of its own.
        """
        if self._home is not None:
            self._home.check()
        if self._loop is None:
            self._home = HomeProcess("the client")
            self._thread = LoopThread()
            self._loop = self._thread.loop
        return run_on(self._loop, coroutine)

    async def open_session(self) -> RemoteSession:
        """Return the session of the client. The first request that has something for it opens it at the
        service, so that opening takes no trip of its own.
        """
        self._loop = asyncio.get_running_loop()
        options = {name: value for name, value in self._options.items() if value is not None}
        self._session = RemoteSession(self._calls, options)
        return self._session

    def check(self, work: Work) -> None:
        """Do nothing: the service checks what is submitted."""

    def submit(self, calls: Sequence[WaitingCall], is_set: Callable[[str], bool]) -> None:
        """Submit calls together. One that is refused fails its own variables."""
        assert self._session is not None
        self._session.submit(calls)

    def usage(self, is_on_loop: bool) -> Usage:
        """Ask the service for the tokens of the session.

        Raises:
            UserError: the session has ended, or the caller runs on the event loop that would have to ask.
        """
        assert self._session is not None
        if is_on_loop:
            raise UserError("usage would block the client's own event loop; use `await client.ausage()`")
        self._session.check_open()  # as its event loop may have ended with it
        return self.run_on_loop(self._session.usage)

    async def ausage(self) -> Usage:
        """Do what `usage` does, on the event loop of the session."""
        assert self._session is not None
        return await self._session.usage()

    def close(self) -> None:
        """End the thread with the event loop, if there is one."""
        if self._home is not None:
            self._home.check()
        if self._thread is not None:
            self._thread.close()
            self._thread = None
