"""One session of a tenant: its variables by id, and what requests do with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TypeAlias

from stretto.http.refusals import Refused
from stretto.model.errors import DeadlineExceeded, StrettoError
from stretto.model.tasks import Criteria, Usage
from stretto.programs.connection import Planned, plan_all
from stretto.programs.fragment import WaitingCall, Work
from stretto.runtime.runtime import Runtime
from stretto.runtime.session import Session
from stretto.service.bodies import MAX_DECODED_BYTES, SHORT_BYTES, in_thread
from stretto.service.calls import Works
from stretto.service.graph_page import ShownStep, graph_lines
from stretto.service.places import LastInstances
from stretto.service.refusals import not_yet
from stretto.service.schema import CallBody, SubmitBody
from stretto.service.session_books import SessionBooks
from stretto.service.sizes import has_many_items
from stretto.service.submitted import (
    Submitted,
    calls_of,
    have_few_items,
    known_works,
    may_close_circle,
    num_asked_tokens,
    read_calls,
    read_value,
    read_values,
)
from stretto.service.tenants import Tenant
from stretto.service.turns import Turn

Outputs: TypeAlias = dict[str, str]
"""The variables of a call's outputs, by the names of the outputs."""

_MAX_SHOWN = 1000
"""Number of the last outputs of a session whose calls its graph shows."""


class ServiceSession:
    """A session of a tenant.

    Attributes:
        used_s: time of the last request, by the clock of the event loop.
        num_readers: number of requests that wait for variables.
    """

    __slots__ = (
        "_books",
        "_calls",
        "_changing",
        "_runtime",
        "_session",
        "id",
        "num_readers",
        "tenant",
        "used_s",
    )

    def __init__(
        self,
        session_id: str,
        tenant: Tenant,
        runtime: Runtime,
        session: Session,
        now_s: float,
    ) -> None:
        self.id = session_id
        self.tenant = tenant
        self.used_s = now_s
        self.num_readers = 0
        self._runtime = runtime
        self._session = session
        self._books = SessionBooks(tenant)
        self._calls: dict[str, WaitingCall] = {}
        self._changing = asyncio.Lock()

    @property
    def num_variables(self) -> int:
        """Number of variables that requests have named and not given up."""
        return len(self._books)

    @property
    def usage(self) -> Usage:
        """Tokens of the session's LLM requests that have ended so far."""
        return self._session.usage

    async def close(self) -> None:
        """End the session: variables without a value fail."""
        await self._session.close()

    async def submit(self, body: SubmitBody, works: Works, now_s: float, num_bytes: int) -> list[Outputs]:
        """Do what a request asks for, or nothing at all; return the variables of each call's outputs.

        A request of many bytes, of many calls or of new prompts is read in a thread, and others have turns
        while it is carried out. Requests that change the same session wait for each other.

        Raises:
            StrettoError: something does not fit; the message names the place.
        """
        bodies = calls_of(body)
        known = known_works(bodies, works)
        is_long = known is None or may_close_circle(bodies, self._books.ledger)
        if num_bytes > SHORT_BYTES:
            is_long = is_long or num_bytes > MAX_DECODED_BYTES or not have_few_items(body)
        async with self._changing:
            self._check_open()
            asked = await in_thread(is_long, lambda: self._read(body, bodies, works, known))
            given = {name: read.value for name, read in asked.values.items()}
            await works.room.check(asked.calls, given, self._session)
            self._check_open()
            self.tenant.check_tokens(asked.num_tokens, now_s)
            await self._carry_out(asked, body, is_long=is_long)
        return [dict(call.outputs) for call in asked.calls]

    async def provide(self, name: str, value: object, num_bytes: int) -> None:
        """Set a variable to a value as JSON has it; `num_bytes` is the size of the request.

        Raises:
            Refused: it has a value, or a call produces it.
            UserError: the value cannot be used.
        """
        async with self._changing:
            self._check_open()
            is_long = num_bytes > SHORT_BYTES and (num_bytes > MAX_DECODED_BYTES or has_many_items([value]))
            read = await in_thread(is_long, lambda: read_value(value, f"the variable {name!r:.80}"))
            self._check_open()
            self._books.check_limits({name: read}, (name,))
            with self._books.ledger.all_or_none():
                self._books.note({name: read}, (), {})
            self._books.add_values({name: read})
            self._session.provide(name, read.value)

    async def drop(self, name: str) -> None:
        """Give a variable up: cancel the work that only serves it, and free its value and its id.

        Raises:
            Refused: there is no such variable.
        """
        async with self._changing:
            self._books.check_known(name)
            self._check_open()
            self._drop(name)

    def is_settled(self, name: str) -> bool:
        """Return whether a variable has its value, or has failed.

        Raises:
            Refused: there is no such variable.
        """
        self._books.check_known(name)
        return self._session.is_settled(name)

    async def get(
        self, name: str, criteria: Criteria | None, timeout_s: float | None, max_wait_s: float
    ) -> object:
        """Wait for a variable and return its value.

        Raises:
            Refused: there is no such variable, or it has not come within `timeout_s` or `max_wait_s` seconds.
            StrettoError: what it has failed with.
        """
        if self.is_settled(name):
            return await self._session.get(name)
        limit_s = max_wait_s if timeout_s is None or timeout_s > max_wait_s else None
        try:
            with _reading(self):
                async with asyncio.timeout(limit_s):
                    return await self._session.get(name, criteria, deadline_s=timeout_s)
        except TimeoutError:
            raise not_yet(name) from None
        except DeadlineExceeded:
            if self._session.is_settled(name):
                raise
            raise not_yet(name) from None

    async def stream(self, name: str, criteria: Criteria | None, max_wait_s: float) -> AsyncIterator[str]:
        """Yield the text of a variable as it is generated.

        Raises:
            Refused: there is no such variable, or nothing of it has come within `max_wait_s` seconds.
            StrettoError: what it has failed with.
        """
        self._books.check_known(name)
        with _reading(self):
            async with aclosing(self._session.stream(name, criteria)) as pieces:  # type: ignore[type-var]
                try:
                    async with asyncio.timeout(max_wait_s):
                        first = await anext(pieces, None)
                except TimeoutError:
                    raise not_yet(name) from None
                if first is None:
                    return
                yield first
                async for piece in pieces:
                    yield piece

    def lines(self, places: LastInstances) -> list[ShownStep]:
        """Return a line for each request to an LLM of the last calls, in words."""
        calls = list({id(call): call for call in self._calls.values()}.values())

        def state(name: str) -> str:
            return "has come" if self._session.is_settled(name) else "is to come"

        return graph_lines(calls, state, places.of(self._session.id))

    def _read(
        self, body: SubmitBody, bodies: Sequence[CallBody], works: Works, known: Sequence[Work] | None
    ) -> Submitted:
        """Read and check a request. Nothing changes but the number of the last new name.

        Raises:
            StrettoError: something does not fit; the message names the place.
        """
        values = read_values(body.values)
        if len(bodies) > self.tenant.limits.width:
            raise Refused(
                422,
                "over_limit",
                f"there are {len(bodies)} calls; at most {self.tenant.limits.width} go together",
            )
        calls = read_calls(bodies, works, self.tenant, self._books.new_name, known)
        named = {*values, *body.wanted}
        for call in calls:
            named.update(call.outputs.values(), call.reads)
        for name in body.dropped:
            if name not in named:
                self._books.check_known(name)
        self._books.check_limits(values, named)
        planned: list[Planned] | StrettoError = []
        if calls:
            try:
                planned = plan_all(
                    self._runtime,
                    self._session,
                    calls,
                    lambda name: name in values or self._books.ledger.is_set(name),
                )
            except StrettoError as error:  # raised later, when nothing else is refused
                planned = error
        return Submitted(values, calls, sum(map(num_asked_tokens, calls)), planned)

    async def _carry_out(self, asked: Submitted, body: SubmitBody, *, is_long: bool) -> None:
        """Add what a request asks for to the books and to the session, or nothing. Raises StrettoError."""
        turn = Turn()
        depths: dict[str, int] = {}
        with self._books.ledger.all_or_none():
            await in_thread(is_long, lambda: self._books.note(asked.values, asked.calls, depths))
            if isinstance(asked.planned, StrettoError):
                raise asked.planned
            for place, planned in enumerate(asked.planned):
                if place:
                    await turn.pause()
                planned.add_to(self._session)
        self._books.add_depths(depths)
        for call in asked.calls[-_MAX_SHOWN:]:
            self._calls.update(dict.fromkeys(call.outputs.values(), call.without_values()))
        while len(self._calls) > _MAX_SHOWN:
            del self._calls[next(iter(self._calls))]
        self._books.add_values(asked.values)
        self.tenant.spend_tokens(asked.num_tokens)
        for name, criteria in body.wanted.items():
            self._books.add([name])
            self._session.want(name, criteria)
            await turn.pause()
        for name, read in asked.values.items():
            self._session.provide(name, read.value)
            await turn.pause()
        for name in dict.fromkeys(body.dropped):
            self._drop(name)
            await turn.pause()

    def _drop(self, name: str) -> None:
        self._books.forget(name)
        self._calls.pop(name, None)
        self._session.drop(name)

    def _check_open(self) -> None:
        if self._session.is_closed():
            raise Refused(410, "query_ended", "the session has ended")


@contextmanager
def _reading(session: ServiceSession) -> Iterator[None]:
    """Count a request as one that waits for a variable."""
    session.num_readers += 1
    try:
        yield
    finally:
        session.num_readers -= 1
