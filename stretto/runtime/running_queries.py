"""The running queries and sessions: how many there may be, and the delivery of their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count

from stretto.model.errors import DeadlineExceeded, InternalError, Overloaded, QueryCancelled, UserError
from stretto.runtime.query import Query, StartedQuery
from stretto.runtime.session_state import SessionState, Slots
from stretto.sched.actions import Emit, Reply, Settled


class RunningQueries:
    """The running queries and sessions of a runtime.

    A query holds one of `max_queries` slots until it has ended, a session while it has work.

    Attributes:
        slots: the slots.
    """

    def __init__(self, max_queries: int) -> None:
        self.slots = Slots(max_queries)
        self._queries: dict[str, Query | StartedQuery | SessionState] = {}
        self._pace = CompletionRate()
        self._ids = count(1)
        self._is_closed = False
        self._is_draining = False
        self._all_ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queries)

    @property
    def ids(self) -> list[str]:
        """Ids of the queries and sessions that run now."""
        return list(self._queries)

    def new_id(self) -> str:
        """Return an id for a new query or session, which no other has had."""
        return f"q{next(self._ids)}"

    def check_accepts(self) -> None:
        """Check that new queries are accepted.

        Raises UserError if the runtime is draining, that is, waits for its queries to end and takes no new
        ones.
        """
        if self._is_draining:
            raise UserError("the runtime is draining: it takes no new queries")

    async def acquire(self, due_s: float | None) -> None:
        """Wait for one of the slots for running queries, and take it.

        Raises:
            DeadlineExceeded: no slot was free before `due_s`, by the clock of the event loop.
            QueryCancelled: the runtime was closed, or began to drain.
        """
        try:
            if not self.slots.take():
                async with asyncio.timeout_at(due_s):
                    await self.slots.acquire()
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the query could start") from None
        if self._is_closed or self._is_draining:
            self.slots.release()
            raise QueryCancelled("the runtime was closed before the query could start")

    def acquire_now(self) -> None:
        """Take one of the slots for running queries without waiting.

        Raises Overloaded if none is free; the error says in how many seconds to try again.
        """
        if not self.slots.take():
            raise Overloaded(
                f"{len(self._queries)} queries are running", retry_after_s=self._pace.retry_after_s()
            )

    def add(self, id: str, query: Query | StartedQuery | SessionState) -> None:
        """Register a query that has taken one of the `max_queries` slots, or a session: from now on what the
        schedulers report of its id is passed to it.
        """
        self._queries[id] = query

    def answer(self, action: Emit | Settled | Reply) -> None:
        """Pass a message of the schedulers (more text, a variable's value, or the end) on to the query or
        session that it is for.
        """
        match action:
            case Emit(query, output, text):
                self._queries[query].on_text(output, text)
            case Settled(query, name, value, usage):
                session = self._queries[query]
                assert isinstance(session, SessionState)
                session.on_settled(name, value, usage)
            case Reply():
                self._end(action)

    async def drain(self) -> None:
        """Accept no new queries, and wait until those that run have ended."""
        self._is_draining = True
        while self._queries:
            self._all_ended.clear()
            await self._all_ended.wait()

    def close(self) -> None:
        """Refuse all callers that wait for a slot to start a query. Queries that run already go on until they
        end.
        """
        self._is_closed = True

    def end_all(self, bug: InternalError) -> None:
        """End all queries and sessions with the error `bug`, because the schedulers have broken down, so that
        no query would end by itself.
        """
        self.close()
        for query in self.ids:
            self._end(Reply(query, None, bug))

    def _end(self, reply: Reply) -> None:
        query = self._queries.pop(reply.query)
        try:
            query.on_reply(reply)
        finally:  # a function of the caller may have raised
            if not isinstance(query, SessionState):
                self.slots.release()
            if not self._queries:
                self._all_ended.set()
        self._pace.note_end(asyncio.get_running_loop().time())


_NUM_RECENT = 16
_DEFAULT_S = 1.0


class CompletionRate:
    """A record of when the last queries ended, from which a refused caller is told when to try again."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_NUM_RECENT)

    def note_end(self, now_s: float) -> None:
        """Record that a query has ended at the time `now_s`."""
        self._ends_s.append(now_s)

    def retry_after_s(self) -> float:
        """Return after how many seconds a refused caller should try again: the mean time between the ends of
        recent queries; 1 if fewer than two have ended.
        """
        if len(self._ends_s) < 2:
            return _DEFAULT_S
        return (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
