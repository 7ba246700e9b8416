"""The state of a session that the runtime writes, its variables and its end; and the slots of queries."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from stretto.model.errors import QueryEnded, UserError
from stretto.model.tasks import Usage
from stretto.runtime.session_variables import SessionVariables
from stretto.sched.actions import Reply


class Slots:
    """A counter of free slots for running queries: callers wait for a slot, first come first
    served, or take one only if it is free.

    It belongs to one event loop.
    """

    def __init__(self, count: int) -> None:
        self._num_free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot without waiting; return False if none is free."""
        if self._num_free <= 0:
            return False
        self._num_free -= 1
        return True

    def take_over(self) -> None:
        """Take a slot even if none is free: the next one that is given back is then not free either."""
        self._num_free -= 1

    async def acquire(self) -> None:
        """Wait for a slot and take it, in order of arrival."""
        if self.take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back; the caller that has waited longest gets it."""
        if self._num_free < 0:
            self._num_free += 1
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1


NO_USAGE = Usage()


class SessionState:
    """What has become of a session so far.

    Args:
        slots: the slots of the runtime, of which one is held while graphs have variables to produce.

    Attributes:
        end: done when the session has ended.
        usage: returns the tokens of its LLM requests that have ended.
    """

    def __init__(self, end: asyncio.Future[None], slots: Slots, usage: Callable[[], Usage]) -> None:
        self.variables = SessionVariables()
        self.end = end
        self.usage = usage
        self._slots = slots
        self._num_to_come = 0

    def check_open(self) -> None:
        """Raise UserError if the session has ended."""
        if self.end.done():
            raise UserError("the session is closed")

    def note_to_come(self, num: int) -> None:
        """Count variables that graphs have still to produce; hold a slot while there are any."""
        before, self._num_to_come = self._num_to_come, self._num_to_come + num
        if self._num_to_come and not before:
            self._slots.take_over()
        elif before and not self._num_to_come:
            self._slots.release()

    def on_text(self, name: str, text: str) -> None:
        """Add more text of a variable, to be given to callers of `stream`."""
        self.variables.of_text(name).write(text)

    def on_settled(self, name: str, value: object, usage: Usage = NO_USAGE) -> None:
        """Set a variable to its value or failure, which callers that wait for it then get. Called once
        for each variable, those that were dropped included.
        """
        variable = self.variables.of_value(name)
        variable.usage = usage
        variable.settle(value)
        if variable.is_made:
            self.note_to_come(-1)

    def on_reply(self, reply: Reply) -> None:
        """End the session; variables without a value fail with the error in `reply`. Called once."""
        self.usage = lambda: reply.usage
        self.variables.fail(reply.error or QueryEnded("the session was closed"))
        self.end.set_result(None)
        self.note_to_come(-self._num_to_come)
