"""A state machine that gets many events at a time, while nobody asks it anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

_MOST = 64
"""Most events that wait: code that runs again and again in a row takes less time than between other work."""
_Machine = TypeVar("_Machine")
_P = ParamSpec("_P")


class DeferredMachine(Generic[_Machine]):
    """A machine of which nobody needs to know at once what it makes of an event. It gets all events in the
    order in which they happened, so that it comes to the same state.

    Args:
        is_asked: returns whether the machine is being asked, so that it gets each event at once.

    Attributes:
        machine: the machine, which may not have got the last events.
    """

    def __init__(self, machine: _Machine, is_asked: Callable[[], bool]) -> None:
        self.machine = machine
        self._is_asked = is_asked
        self._events: deque[tuple[Callable[..., object], tuple[object, ...], dict[str, object]]] = deque()

    def tell(
        self, event: Callable[Concatenate[_Machine, _P], object], *values: _P.args, **named: _P.kwargs
    ) -> None:
        """Call a method of the machine for an event, now or later."""
        self._events.append((event, values, named))
        if len(self._events) >= _MOST or self._is_asked():
            self.catch_up()

    @property
    def now(self) -> _Machine:
        """The machine, which has got all events."""
        self.catch_up()
        return self.machine

    def catch_up(self) -> None:
        """Bring all events that wait to the machine, in order."""
        events, machine = self._events, self.machine
        while events:
            event, values, named = events.popleft()
            event(machine, *values, **named)
