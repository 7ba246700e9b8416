"""The state of a session that the runtime writes: its variables as they come, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stretto.model.errors import QueryEnded, UserError
from stretto.model.tasks import Usage
from stretto.runtime.session_variables import SessionVariables
from stretto.runtime.slots import Slots
from stretto.sched.actions import Reply

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
