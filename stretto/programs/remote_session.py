"""A session of programs at a service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from stretto.model.errors import BadReply, DeadlineExceeded, QueryEnded, StrettoError, UserError
from stretto.model.tasks import Criteria, Usage
from stretto.programs.fragment import WaitingCall
from stretto.programs.http_calls import HttpCalls, NotYet
from stretto.programs.session_requests import SessionRequests
from stretto.programs.wire.values import value_from_wire, value_to_wire
from stretto.runtime.input_checks import check_criteria

_MAX_TIMEOUT_S = 1e6
"""Longest timeout that is told the service, in seconds; it waits for less at a time anyway."""


class RemoteSession:
    """A session at a service, which the first request opens. Its methods belong to one event loop.

    Args:
        options: settings with which the session is opened.
    """

    def __init__(self, calls: HttpCalls, options: Mapping[str, object]) -> None:
        self._http = calls
        self._requests = SessionRequests(calls, options)
        self._loop = asyncio.get_running_loop()
        self._known: set[str] = set()

    @property
    def id(self) -> str:
        """Id of the session; "" before the service has answered the first request."""
        return self._requests.id

    async def usage(self) -> Usage:
        """Ask the service for the tokens of the session's LLM requests that have ended so far.

        Raises:
            UserError: the session has ended, so that the service has forgotten its tokens.
            BadReply: the service does not answer with tokens.
        """
        await self._requests.opened()
        self.check_open()
        if not self.id:
            return Usage()
        told = (await self._http.get(f"/v1/sessions/{self.id}")).get("usage")
        try:
            return msgspec.convert(told, Usage)
        except msgspec.ValidationError as error:
            raise BadReply(f"the service told no tokens of the session: {error}") from error

    def usage_of(self, name: str) -> Usage:
        """Refuse to tell the tokens of a variable, which services do not know. Raises UserError."""
        raise UserError("a service tells no tokens of single variables, only those of a whole session")

    def submit(self, calls: Sequence[WaitingCall]) -> None:
        """Submit calls together."""
        self._requests.next().calls.extend(calls)
        for call in calls:
            self._known.update(call.outputs.values(), call.reads)

    def provide(self, name: str, value: object) -> None:
        """Set a variable to a value, or to a `Failure`."""
        self._requests.next().values[name] = value_to_wire(value)
        self._known.add(name)

    def drop(self, name: str) -> None:
        """Give a variable up: cancel the work that only serves it, and free its value."""
        if name in self._known:
            self._known.discard(name)
            self._requests.next(is_end=True).dropped.append(name)
        self._requests.refused.pop(name, None)

    def ask(
        self, name: str, criteria: Criteria | None = None, *, deadline_s: float | None = None
    ) -> Coroutine[Any, Any, object]:
        """Make a variable wanted, by the next request if the service does not know it yet, and return a
        coroutine that waits for it, which must be awaited.

        Raises:
            UserError: there are no such criteria.
        """
        check_criteria(criteria)
        due_s = None if deadline_s is None else self._loop.time() + deadline_s
        self._announce(name, criteria)
        return self._get(name, criteria, deadline_s, due_s)

    async def stream(self, name: str, criteria: Criteria | None = None) -> AsyncIterator[str]:
        """Yield the text of a variable as it is generated."""
        check_criteria(criteria)
        self._announce(name, criteria)
        await self._requests.all_sent()
        self._check(name)
        body = {"session_id": self.id, "semantic_var_id": name, "stream": True}
        async for piece in self._http.stream("/v1/get", _with_criteria(body, criteria)):
            yield piece

    def check_open(self) -> None:
        """Check that the session has not ended, so that its tokens are known. Raises UserError if it has."""
        if (end := self._requests.end) is not None:
            raise UserError(
                f"a service tells tokens only while the session of the client lasts: {end.message}"
            )

    def is_closed(self) -> bool:
        """Return whether the session has ended, so that it takes no more calls and values."""
        return self._requests.end is not None

    async def close(self) -> None:
        """End the session at the service, and close all connections."""
        if self._requests.end is None:
            self._requests.finish(QueryEnded("the session was closed"))
            await self._requests.opened()
            if self.id:
                with suppress(StrettoError):  # it may have expired, and a service that is gone has none
                    await self._http.delete(f"/v1/sessions/{self.id}")
        self._requests.stop()
        await self._http.close()

    async def _get(
        self, name: str, criteria: Criteria | None, deadline_s: float | None, due_s: float | None
    ) -> object:
        try:
            async with asyncio.timeout_at(due_s):
                await self._requests.all_sent()
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
            self._requests.next().wanted[name] = criteria
            self._known.add(name)

    def _check(self, name: str) -> None:
        if (error := self._requests.refused.get(name) or self._requests.end) is not None:
            raise error


def _with_criteria(body: dict[str, Any], criteria: Criteria | None) -> dict[str, Any]:
    return body if criteria is None else {**body, "criteria": criteria}
