"""A question of the router itself to a worker: one request, whose answer is awaited."""

from __future__ import annotations

import asyncio

from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client.headers import Headers
from stretto.model.errors import EngineFailure, EngineTimeout, EngineUnavailable
from stretto.router.attempt import Attempt
from stretto.router.replies import JSON_HEADERS
from stretto.router.worker_link import WorkerLink

_MAX_BYTES = 4_000_000


async def ask_worker(
    link: WorkerLink, timeout_s: float, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """Return the status and body of a worker's answer to a GET, or to a POST of a JSON body.

    Raises:
        EngineFailure: there is no answer in time; BadReply if what comes is no HTTP.
    """
    question = _Question(link, path, body)
    try:
        async with asyncio.timeout(timeout_s):
            return await question.answer
    except TimeoutError as error:
        raise EngineTimeout(f"it did not answer /{path} in {timeout_s:g} s") from error
    finally:
        question.attempt.abort()


class _Question:
    """A request of the router itself, whose answer is a future."""

    def __init__(self, link: WorkerLink, path: str, body: bytes | None) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = bytearray()
        headers: Headers = [(b"accept", b"*/*"), *(() if body is None else JSON_HEADERS)]
        method = b"GET" if body is None else b"POST"
        data = link.request(method, f"/{path}".encode(), headers, body or b"")
        self.attempt = Attempt(link.connections, data, self, may_reuse=True)

    def on_head(self, answer: AnswerParser) -> None:
        """Keep the status."""
        self._status = answer.status

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body; a huge one is not kept whole."""
        if len(self._body) < _MAX_BYTES:
            self._body += data

    def on_end(self) -> None:
        """Give the answer."""
        if not self.answer.done():
            self.answer.set_result((self._status, bytes(self._body)))

    def on_failed(self, failure: EngineFailure, *, was_sent: bool) -> None:
        """Give the error."""
        if not self.answer.done():
            self.answer.set_exception(failure)

    def on_broken(self) -> None:
        """Give an error that names none: the log has it."""
        self.on_failed(EngineUnavailable("its answer could not be taken"), was_sent=True)
