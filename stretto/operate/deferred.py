"""Shows requests to observers many at a time: code that runs again and again in a row takes half of the time
that it takes between other work, which has displaced it from the processor's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stretto.cluster.placement import PromptKey
from stretto.sched.observer import ARRIVED, ENDED, KEYED, Observer, Observers
from stretto.sched.request_trace import RequestTrace

_MOST = 128
"""Events that wait: about a millisecond of work."""


class DeferredObservers(Observer):
    """An observer that shows requests to others later, in the order of what happened: when `_MOST` events
    wait, or when somebody wants to know what the others have seen (`catch_up`).

    Attributes:
        sources: called by `catch_up`: each brings what it has seen and keeps.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = Observers(observers)
        self._waiting: list[tuple[int, RequestTrace, Any]] = []
        self.sources: list[Callable[[], None]] = []

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Keep a request that has arrived."""
        self._waiting.append((ARRIVED, trace, now_s))

    def on_request_keyed(self, trace: RequestTrace, key: PromptKey) -> None:
        """Keep the key of the prompt of a request."""
        self._waiting.append((KEYED, trace, key))

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Keep a request that has ended."""
        self._waiting.append((ENDED, trace, now_s))
        if len(self._waiting) >= _MOST:
            self._show()

    def catch_up(self) -> None:
        """Show the observers all that has happened."""
        for bring in self.sources:
            bring()
        self._show()

    def _show(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._observers.on_requests(waiting)
