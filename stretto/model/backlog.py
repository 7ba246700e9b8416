"""Calls that are made later, many in a row: code that runs again and again takes half of the time that it
takes between other work, which has displaced it from the processor's caches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_Machine = TypeVar("_Machine")


class Backlog:
    """Calls of which nobody needs to know at once what comes of them. They are made in their order by
    `catch_up`, which comes before each question whose answer depends on them.

    Args:
        soon: called with `catch_up` when there is something to do; None where nobody needs it soon.
        on_error: called with what a call raises; None raises it.

    Attributes:
        waiting: what is to be called, in order.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        self.waiting: deque[Callable[[], object]] = deque()
        self._soon = soon
        self._on_error = on_error
        self._is_catching_up = False

    def add(self, call: Callable[[], object]) -> None:
        """Have something called later."""
        if self._soon is not None and not self.waiting:
            self._soon(self.catch_up)
        self.waiting.append(call)

    def catch_up(self) -> None:
        """Call now what waits, in order. A call that comes of these calls waits for its turn. What a call
        raises is raised; those after it go on waiting.
        """
        if self._is_catching_up:
            return
        self._is_catching_up = True
        try:
            while self.waiting:
                try:
                    self.waiting.popleft()()
                except Exception as error:
                    if self._on_error is None:
                        raise
                    self._on_error(error)
        finally:
            self._is_catching_up = False
            if self.waiting and self._soon is not None:  # a call has failed
                self._soon(self.catch_up)


class DeferredMachine(Generic[_Machine]):
    """A state machine that gets its events by a backlog. It comes to the same state, as it gets all of them
    in the order in which they happened.

    Args:
        most: number of events that wait, at which the machine gets all.
        is_asked: returns whether the machine is being asked, so that it gets each event at once.

    Attributes:
        machine: the machine, which may not have got the last events.
    """

    def __init__(self, machine: _Machine, most: int, is_asked: Callable[[], bool]) -> None:
        self.machine = machine
        self._is_asked = is_asked
        self._most = most
        self._events = Backlog()

    def tell(self, event: Callable[_P, object], *values: _P.args, **named: _P.kwargs) -> None:
        """Call a method of the machine for an event, now or later."""
        waiting = self._events.waiting
        waiting.append(partial(event, *values, **named))
        if len(waiting) >= self._most or self._is_asked():
            self._events.catch_up()

    def catch_up(self) -> None:
        """Bring all events that wait to the machine."""
        self._events.catch_up()

    @property
    def now(self) -> _Machine:
        """The machine, which has got all events."""
        self._events.catch_up()
        return self.machine
