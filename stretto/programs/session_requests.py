"""The requests of a session at a service: what comes while one is under way goes together in the next."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.model.errors import CapacityError, StrettoError, UserError
from stretto.model.tasks import Criteria
from stretto.model.values import Failure
from stretto.programs.fragment import WaitingCall
from stretto.programs.http_calls import HttpCalls
from stretto.programs.wire.calls import call_to_wire
from stretto.programs.wire.values import value_to_wire


@dataclass(slots=True, eq=False)
class Batch:
    """The content of one request to the service: values, calls, and variables to give up after them."""

    sent: asyncio.Future[None]
    calls: list[WaitingCall] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    wanted: dict[str, Criteria | None] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)


class SessionRequests:
    """Sends what a session asks for, and opens it with the first request.

    Args:
        options: settings with which the session is opened.

    Attributes:
        id: id of the session; "" before the service has answered the first request.
        end: the error with which the session has ended here; None while it lasts.
        refused: errors of the variables that were refused one by one.
    """

    def __init__(self, http: HttpCalls, options: Mapping[str, object]) -> None:
        self.id = ""
        self.end: StrettoError | None = None
        self.refused: dict[str, StrettoError] = {}
        self._http = http
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._batches: deque[Batch] = deque()
        self._last: Batch | None = None
        self._sender: asyncio.Task[None] | None = None

    def next(self, *, is_end: bool = False) -> Batch:
        """Return the batch that is sent next. A variable whose name is used again must not be in the batch
        that gives it up, so `is_end` says that nothing but further drops may follow.
        """
        if not self._batches or (self._batches[-1].dropped and not is_end):
            self._last = Batch(self._loop.create_future())
            self._batches.append(self._last)
        if self._sender is None or self._sender.done():
            self._sender = self._loop.create_task(self._send_all())
        return self._batches[-1]

    async def all_sent(self) -> None:
        """Wait until the service has everything that has been put so far."""
        if self._last is not None:
            await asyncio.shield(self._last.sent)

    async def opened(self) -> None:
        """Wait for a request on its way, if it opens the session."""
        if self._sender is not None and not self.id:
            await asyncio.wait([self._sender])

    def stop(self) -> None:
        """Send nothing more."""
        if self._sender is not None:
            self._sender.cancel()

    def finish(self, error: StrettoError) -> None:
        """End the session here: whoever waits for a variable gets the error."""
        self.end = self.end or error
        if self._last is not None and not self._last.sent.done():
            self._last.sent.set_result(None)

    async def _send_all(self) -> None:
        while self._batches:
            batch = self._batches.popleft()
            if self.end is None:
                await self._send(batch)
            if not batch.sent.done():
                batch.sent.set_result(None)

    async def _send(self, batch: Batch) -> None:
        """Send a batch; if it is refused as a whole, its parts one by one."""
        body: dict[str, object] = {"session_id": self.id} if self.id else {"session": self._options}
        for part in ("values", "wanted", "dropped"):
            if content := getattr(batch, part):
                body[part] = content
        try:
            if batch.calls:
                body["calls"] = [call_to_wire(call) for call in batch.calls]
            answer = await self._http.post("/v1/submit", body, key=secrets.token_hex(8))
            self.id = self.id or answer["session_id"]
        except (UserError, CapacityError) as error:
            if self.id or await self._open_alone():
                await self._send_apart(batch, error)
        except StrettoError as error:
            self.finish(error)

    async def _open_alone(self) -> bool:
        """Open the session by a request of its own, after one that would have opened it was refused; return
        whether that has worked. If not, it was the session that was refused, and not what should go to it.
        """
        try:
            answer = await self._http.post("/v1/sessions", self._options, key=secrets.token_hex(8))
        except StrettoError as error:
            self.finish(error)
            return False
        self.id = answer["session_id"]
        return True

    async def _send_apart(self, batch: Batch, error: StrettoError) -> None:
        parts: list[Batch] = [
            *(Batch(batch.sent, values={name: value}) for name, value in batch.values.items()),
            *(Batch(batch.sent, calls=[call]) for call in batch.calls),
            *(Batch(batch.sent, wanted={name: wish}) for name, wish in batch.wanted.items()),
            *(Batch(batch.sent, dropped=[name]) for name in batch.dropped),
        ]
        if len(parts) > 1:
            for part in parts:
                await self._send(part)
            return
        self.refused.update(dict.fromkeys([*batch.values, *batch.wanted], error))
        for call in batch.calls:
            located = error.at(call.work.name)
            self.refused.update(dict.fromkeys(call.outputs.values(), located))
            failed = value_to_wire(Failure(located))
            await self._send(Batch(batch.sent, values=dict.fromkeys(call.outputs.values(), failed)))
