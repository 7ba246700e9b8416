"""Shows requests to observers many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stretto.cluster.placement_request import PromptKey
from stretto.sched.observer import Observer, Observers, RequestEvent
from stretto.sched.request_trace import RequestTrace

_MOST = 128
"""Events that wait: about a millisecond of work."""


class DeferredObservers(Observer):
    """An observer that shows requests to others later: when `_MOST` events wait, or when somebody wants to
    know what the others have seen (`catch_up`).

    Attributes:
        sources: called by `catch_up`: each brings what it has seen and keeps.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = Observers(observers)
        self._waiting: list[RequestEvent] = []
        self.sources: list[Callable[[], None]] = []

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Keep a request that has arrived."""
        self._waiting.append(("on_request_arrived", trace, now_s))

    def on_request_keyed(self, trace: RequestTrace, key: PromptKey) -> None:
        """Keep the key of the prompt of a request."""
        self._waiting.append(("on_request_keyed", trace, key))

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Keep a request that has ended."""
        self._waiting.append(("on_request_ended", trace, now_s))
        if len(self._waiting) >= _MOST:
            self._show()

    def catch_up(self) -> None:
        """Show the observers all that has happened."""
        for bring in self.sources:
            bring()
        self._show()

    def _show(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._observers.on_requests(waiting)
