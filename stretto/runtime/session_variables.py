"""The variables of a session as its callers see them: texts as they come, and values."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from stretto.model.errors import StrettoError, UserError
from stretto.model.tasks import Usage
from stretto.model.values import ABSENT, Failure, as_text
from stretto.runtime.input_checks import check_variable
from stretto.sched.queries.live_values import UNSET

_NO_USAGE = Usage()


@dataclass(slots=True, eq=False)
class SessionVariable:
    """A variable as its callers see it: pieces of the text that has been generated so far, and its value to
    come.

    A later variable of the same name is another object, so that their texts are never mixed. Lists are made
    when they are needed: a session may keep many variables, most of which have come.

    Attributes:
        is_claimed: whether it has a value or comes of a graph, so that nothing else may make it.
        is_made: whether a graph produces it.
        value: what it has become, a value or a failure; `UNSET` before that.
        pieces: pieces of its text; none once the value is the whole of it.
        waiting: one for each caller who waits for more.
        usage: tokens of the LLM requests that have made it.
    """

    is_claimed: bool = False
    is_made: bool = False
    value: object = UNSET
    pieces: list[str] | None = None
    waiting: list[asyncio.Future[None]] | None = None
    usage: Usage = _NO_USAGE

    def has_come(self) -> bool:
        """Return whether the variable has its value, or has failed."""
        return self.value is not UNSET

    def wake(self) -> None:
        """Wake those who wait, as there is more text, or the value."""
        waiting, self.waiting = self.waiting, None
        for waiter in waiting or ():
            if not waiter.done():
                waiter.set_result(None)

    def write(self, text: str) -> None:
        """Add more text, and wake those who wait."""
        if self.pieces is None:
            self.pieces = []
        self.pieces.append(text)
        self.wake()

    def settle(self, value: object) -> None:
        """Set the variable to its value, and wake those who wait."""
        self.value = value
        if isinstance(value, str):
            self.pieces = None
        self.wake()

    def result(self) -> object:
        """Return the value that has come. Raises what the variable has failed with."""
        if isinstance(self.value, Failure):
            raise self.value.error
        return self.value

    async def more(self) -> None:
        """Wait until there is more text, or the value."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.waiting is None:
            self.waiting = []
        self.waiting.append(waiter)
        try:
            await waiter
        finally:
            if self.waiting is not None and waiter in self.waiting:
                self.waiting.remove(waiter)

    async def texts(self) -> AsyncIterator[str]:
        """Yield the text as it comes, in pieces that join to the whole. Raises what the variable fails with,
        and UserError if its value has no text.
        """
        sent = num_pieces = 0
        while True:
            if self.pieces is not None and (pieces := self.pieces[num_pieces:]):
                num_pieces += len(pieces)
                text = "".join(pieces)
                sent += len(text)
                yield text
            elif self.has_come():
                if text := _shown(self.result())[sent:]:
                    yield text
                return
            else:
                await self.more()


class SessionVariables:
    """The variables of one session by name. Text and values that were on their way when a variable was
    dropped belong to the dropped one, not to a later one of the same name.
    """

    def __init__(self) -> None:
        self._variables: dict[str, SessionVariable] = {}
        self._dropped: dict[str, deque[SessionVariable]] = {}

    def get(self, name: str) -> SessionVariable:
        """Return a variable, which is made if there is none of that name."""
        check_variable(name)
        if name not in self._variables:
            self._variables[name] = SessionVariable()
        return self._variables[name]

    def known(self, name: str) -> SessionVariable | None:
        """Return a variable; None if there is none of that name."""
        return self._variables.get(name)

    def claim(self, names: Iterable[str]) -> None:
        """Note that variables get a value or come of a graph. Raises UserError if one does already."""
        names = list(names)
        for name in names:
            check_variable(name)
        for name, number in Counter(names).items():
            known = self._variables.get(name)
            if (known is not None and known.is_claimed) or number > 1:
                raise UserError(f"the variable {name!r} has a value, or comes of a graph, already")
        for name in names:
            self.get(name).is_claimed = True

    def drop(self, name: str) -> bool:
        """Give a variable up; return whether there was one."""
        check_variable(name)
        variable = self._variables.pop(name, None)
        if variable is not None and not variable.has_come():
            self._dropped.setdefault(name, deque()).append(variable)
        return variable is not None

    def of_text(self, name: str) -> SessionVariable:
        """Return the variable that a text belongs to."""
        return self._dropped[name][0] if name in self._dropped else self.get(name)

    def of_value(self, name: str) -> SessionVariable:
        """Return the variable that a value belongs to, which comes once for each."""
        if (dropped := self._dropped.get(name)) is None:
            return self.get(name)
        variable = dropped.popleft()
        if not dropped:
            del self._dropped[name]
        return variable

    def fail(self, error: StrettoError) -> None:
        """Let all variables without a value fail."""
        dropped = (one for many in self._dropped.values() for one in many)
        for variable in (*self._variables.values(), *dropped):
            if not variable.has_come():
                variable.settle(Failure(error))


def _shown(value: object) -> str:
    """Return the text of a value for those who stream it. Raises UserError if it has none."""
    if value is ABSENT:
        return ""
    try:
        return as_text(value)
    except TypeError as error:
        raise UserError(f"the value cannot be streamed: {error}; use get") from error
