"""A session of programs at a service, with the calls that wait to be sent there."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stretto.model.errors import CapacityError, DeadlineExceeded, QueryEnded, StrettoError, UserError
from stretto.model.tasks import Criteria, Usage
from stretto.model.values import Failure
from stretto.programs.fragment import WaitingCall
from stretto.programs.http_calls import HttpCalls, NotYet
from stretto.programs.wire.calls import call_to_wire
from stretto.programs.wire.values import value_from_wire, value_to_wire

_MAX_TIMEOUT_S = 1e6
"""Longest timeout that is told the service, in seconds; it waits for less at a time anyway."""


@dataclass(slots=True, eq=False)
class _Batch:
    """The content of one request to the service: values, calls, and variables to give up after them."""

    sent: asyncio.Future[None]
    calls: list[WaitingCall] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    wanted: dict[str, Criteria | None] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)


class RemoteSession:
    """A session at a service, which the first request opens. Its methods belong to one event loop.

    Args:
        options: settings with which the session is opened.

    Attributes:
        id: id of the session; "" before the service has answered the first request.
    """

    def __init__(self, calls: HttpCalls, options: Mapping[str, object]) -> None:
        self.id = ""
        self._http = calls
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._batches: deque[_Batch] = deque()
        self._last: _Batch | None = None
        self._sender: asyncio.Task[None] | None = None
        self._known: set[str] = set()
        self._refused: dict[str, StrettoError] = {}
        self._end: StrettoError | None = None

    @property
    def usage(self) -> Usage:
        """Refuse to tell tokens, which takes a request. Raises UserError."""
        raise UserError(f"a service tells the tokens of a session at /v1/sessions/{self.id or 'ID'}")

    def usage_of(self, name: str) -> Usage:
        """Refuse to tell the tokens of a variable, which services do not know. Raises UserError."""
        raise UserError("a service tells no tokens of single variables, only those of a whole session")

    def submit(self, calls: Sequence[WaitingCall]) -> None:
        """Submit calls together."""
        self._open_batch().calls.extend(calls)
        for call in calls:
            self._known.update(call.outputs.values(), call.reads)

    def provide(self, name: str, value: object) -> None:
        """Set a variable to a value, or to a `Failure`."""
        self._open_batch().values[name] = value_to_wire(value)
        self._known.add(name)

    def drop(self, name: str) -> None:
        """Give a variable up: cancel the work that only serves it, and free its value."""
        if name in self._known:
            self._known.discard(name)
            self._open_batch(is_end=True).dropped.append(name)
        self._refused.pop(name, None)

    def ask(
        self, name: str, criteria: Criteria | None = None, *, deadline_s: float | None = None
    ) -> Coroutine[Any, Any, object]:
        """Make a variable wanted, by the next request if the service does not know it yet, and return a
        coroutine that waits for it, which must be awaited.
        """
        due_s = None if deadline_s is None else self._loop.time() + deadline_s
        self._announce(name, criteria)
        return self._get(name, criteria, deadline_s, due_s)

    async def stream(self, name: str, criteria: Criteria | None = None) -> AsyncIterator[str]:
        """Yield the text of a variable as it is generated."""
        self._announce(name, criteria)
        await self._all_sent()
        self._check(name)
        body = {"session_id": self.id, "semantic_var_id": name, "stream": True}
        async for piece in self._http.stream("/v1/get", _with_criteria(body, criteria)):
            yield piece

    def is_closed(self) -> bool:
        """Return whether the session has ended, so that it takes no more calls and values."""
        return self._end is not None

    async def close(self) -> None:
        """End the session at the service, and close all connections."""
        if self._end is None:
            self._finish(QueryEnded("the session was closed"))
            if self._sender is not None and not self.id:  # what opens the session is on its way
                await asyncio.wait([self._sender])
            if self.id:
                with suppress(StrettoError):  # it may have expired, and a service that is gone has none
                    await self._http.delete(f"/v1/sessions/{self.id}")
        if self._sender is not None:
            self._sender.cancel()
        await self._http.close()

    async def _get(
        self, name: str, criteria: Criteria | None, deadline_s: float | None, due_s: float | None
    ) -> object:
        try:
            async with asyncio.timeout_at(due_s):
                await self._all_sent()
        except TimeoutError:
            raise DeadlineExceeded(f"{name!r} has not come within {deadline_s:g} s") from None
        body = _with_criteria({"session_id": self.id, "semantic_var_id": name}, criteria)
        while True:
            self._check(name)
            if due_s is not None:
                body["timeout_s"] = min(max(0.0, due_s - self._loop.time()), _MAX_TIMEOUT_S)
            try:
                answer = await self._http.post("/v1/get", body)
            except NotYet:
                if due_s is None or self._loop.time() < due_s:
                    continue
                raise DeadlineExceeded(f"{name!r} has not come within {deadline_s:g} s") from None
            return value_from_wire(answer["value"])

    def _announce(self, name: str, criteria: Criteria | None) -> None:
        """Let the service know a variable with the next request, and that somebody waits for it."""
        if name not in self._known:
            self._open_batch().wanted[name] = criteria
            self._known.add(name)

    def _check(self, name: str) -> None:
        if (error := self._refused.get(name) or self._end) is not None:
            raise error

    def _open_batch(self, *, is_end: bool = False) -> _Batch:
        """Return the batch that is sent next. A variable whose name is used again must not be in the batch
        that gives it up, so `is_end` says that nothing but further drops may follow.
        """
        if not self._batches or (self._batches[-1].dropped and not is_end):
            self._last = _Batch(self._loop.create_future())
            self._batches.append(self._last)
        if self._sender is None or self._sender.done():
            self._sender = self._loop.create_task(self._send_all())
        return self._batches[-1]

    async def _all_sent(self) -> None:
        """Wait until the service has everything that has been put so far."""
        if self._last is not None:
            await asyncio.shield(self._last.sent)

    async def _send_all(self) -> None:
        while self._batches:
            batch = self._batches.popleft()
            if self._end is None:
                await self._send(batch)
            if not batch.sent.done():
                batch.sent.set_result(None)

    async def _send(self, batch: _Batch) -> None:
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
            self._finish(error)

    async def _open_alone(self) -> bool:
        """Open the session by a request of its own, after one that would have opened it was refused; return
        whether that has worked. If not, it was the session that was refused, and not what should go to it.
        """
        try:
            answer = await self._http.post("/v1/sessions", self._options, key=secrets.token_hex(8))
        except StrettoError as error:
            self._finish(error)
            return False
        self.id = answer["session_id"]
        return True

    async def _send_apart(self, batch: _Batch, error: StrettoError) -> None:
        parts: list[_Batch] = [
            *(_Batch(batch.sent, values={name: value}) for name, value in batch.values.items()),
            *(_Batch(batch.sent, calls=[call]) for call in batch.calls),
            *(_Batch(batch.sent, wanted={name: wish}) for name, wish in batch.wanted.items()),
            *(_Batch(batch.sent, dropped=[name]) for name in batch.dropped),
        ]
        if len(parts) > 1:
            for part in parts:
                await self._send(part)
            return
        self._refused.update(dict.fromkeys([*batch.values, *batch.wanted], error))
        for call in batch.calls:
            located = error.at(call.work.name)
            self._refused.update(dict.fromkeys(call.outputs.values(), located))
            failed = value_to_wire(Failure(located))
            await self._send(_Batch(batch.sent, values=dict.fromkeys(call.outputs.values(), failed)))

    def _finish(self, error: StrettoError) -> None:
        """End the session here: whoever waits for a variable gets the error."""
        self._end = self._end or error
        if self._last is not None and not self._last.sent.done():
            self._last.sent.set_result(None)


def _with_criteria(body: dict[str, Any], criteria: Criteria | None) -> dict[str, Any]:
    return body if criteria is None else {**body, "criteria": criteria}
