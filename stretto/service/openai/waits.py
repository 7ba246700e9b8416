"""How long queries have waited for their turn or for room, which headers of answers tell."""

from __future__ import annotations

from stretto.sched.actions import Action, Admit, Reply
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer

_MAX_ENDED = 1000


class QueryWaits(Observer):
    """An observer that keeps how long each query of one call has waited before it was last sent to an engine.
    What it knows of a query stays until 1,000 later ones have ended.
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._waited_s: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def on_event(self, event: Event, now_s: float) -> None:
        """Note when a query comes."""
        if type(event) is Submit:
            self._since_s[event.query] = now_s

    def on_action(self, action: Action, now_s: float) -> None:
        """Note when its call is sent to an engine, and when it ends."""
        if type(action) is Admit and action.task.decode is not None:
            if (since_s := self._since_s.get(action.task.query)) is not None:
                self._waited_s[action.task.query] = now_s - since_s
        elif type(action) is Reply:
            self._since_s.pop(action.query, None)
            if (waited_s := self._waited_s.pop(action.query, None)) is not None:
                self._ended[action.query] = waited_s
                if len(self._ended) > _MAX_ENDED:
                    del self._ended[next(iter(self._ended))]

    def of(self, query: str) -> float | None:
        """Return the seconds that a query has waited; None for one that was not sent to an engine."""
        return self._waited_s.get(query, self._ended.get(query))
