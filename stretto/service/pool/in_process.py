"""An HTTP client of the router in this process: requests reach it without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar

from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client.headers import Headers, value_of
from stretto.http.client_request import ClientRequest
from stretto.http.request import JSON_TYPE
from stretto.http.served import Answerable, Served
from stretto.model.errors import EngineUnavailable
from stretto.router.door import RouterDoor
from stretto.router.messages import Sender, WorkerId
from stretto.router.told_headers import WORKER_HEADER

SENDER: ContextVar[Sender | None] = ContextVar("sender", default=None)
"""The sender of the requests of the present task."""
ANSWERED_BY: ContextVar[list[tuple[WorkerId, int]]] = ContextVar("answered_by")
"""List of the workers that have begun to answer the requests of the present task, each with the status of its
answer; the client adds to it.
"""


class InProcessClient:
    """A client of a router in this process (`HttpClient`).

    Args:
        door: returns the door of the router.
    """

    def __init__(self, door: Callable[[], RouterDoor]) -> None:
        self._door = door

    async def send(self, method: str, path: str, body: bytes | None) -> InProcessAnswer:
        """Send a request, and return the answer when its head has come.

        Raises:
            EngineUnavailable: the router cuts the request off.
        """
        request = ClientRequest(
            method.encode(),
            b"/" + path.lstrip("/").encode(),
            headers=[] if body is None else [(b"content-type", JSON_TYPE)],
            content_type=JSON_TYPE.decode(),
            takes_chunks=False,
            found=SENDER.get(),
        )
        if body is not None:
            request.add(body)
        answer = InProcessAnswer(request)
        try:
            answer.served = self._door().serve(answer, request)
            await answer.wait_for_head()
            if (worker := answer.header(WORKER_HEADER)) and (
                answered_by := ANSWERED_BY.get(None)
            ) is not None:
                answered_by.append((int(worker), answer.status))
        except BaseException:
            answer.leave()
            raise
        return answer

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""


class InProcessAnswer:
    """An answer of the router, which writes it here as to the connection of a client (`Answering`), and which
    is read as the answer of a server (`HttpAnswer`).

    Attributes:
        served: what answers the request; None once that has been done.
    """

    is_local = is_full = False

    def __init__(self, request: ClientRequest) -> None:
        self._request = request
        self.served: Served | None = None
        self.status = 0
        self._headers: Headers = []
        self._parser: AnswerParser | None = None
        self._parts: list[bytes] = []
        self._has_ended = self._is_cut = False
        self._news = asyncio.Event()

    # --- what the router does

    def hold(self, num_bytes: int) -> bool:
        """Return that bytes may be held: those of an engine's answers are bounded by its tokens."""
        return True

    def answer(
        self, status: int, headers: Headers, body: bytes, *, keeps_alive: bool, reason: bytes = b""
    ) -> None:
        """Take a whole answer."""
        self.status, self._headers = status, headers
        self._parts.append(body)
        self.finished(keeps_alive=keeps_alive)

    def write(self, data: bytes) -> None:
        """Take bytes of an answer, which begins with its head."""
        if self._parser is None:
            self._parser = AnswerParser()
        self._parser.feed(data)
        self.status, self._headers = self._parser.status, self._parser.headers
        if body := self._parser.take_body():
            self._parts.append(body)
        self._news.set()

    def finished(self, *, keeps_alive: bool) -> None:
        """Note that all of the answer has been written."""
        self.served, self._has_ended = None, True
        self._news.set()

    def abort(self) -> None:
        """Note that the answer is cut."""
        self._is_cut = True
        self._news.set()
        self.leave()

    @property
    def is_open(self) -> bool:
        """Whether somebody waits for the answer."""
        return not self._is_cut

    def hand_over(self, serve: Callable[[Answerable, ClientRequest], Served | None]) -> None:
        """Let something else answer the request."""
        served = serve(self, self._request)
        if not self._has_ended:
            self.served = served

    # --- what the engine does

    async def wait_for_head(self) -> None:
        """Wait until the head has come. Raises EngineUnavailable."""
        while not self.status:
            await self._wait()

    def header(self, name: str) -> str:
        """Return the value of a header, whose name is in lower case; "" if there is none."""
        return (value_of(self._headers, name.encode()) or b"").decode("latin-1")

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they come. Raises EngineUnavailable."""
        while True:
            if self._parts:
                parts, self._parts = self._parts, []
                yield b"".join(parts)
            elif self._has_ended:
                return
            else:
                await self._wait()

    async def aclose(self) -> None:
        """End the request, unless its answer has ended."""
        self.leave()

    def leave(self) -> None:
        """Tell the router that nobody waits for the answer any more."""
        if self.served is not None:
            served, self.served = self.served, None
            served.client_left()

    async def _wait(self) -> None:
        if self._is_cut:
            raise EngineUnavailable("the answer was cut")
        self._news.clear()
        await self._news.wait()
