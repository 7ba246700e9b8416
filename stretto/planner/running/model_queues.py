"""The calls of each model that wait to be made, and the requests that are read for them."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable

from stretto.planner.application import Application
from stretto.planner.running.book import Book
from stretto.planner.running.planned_calls import PlannedCall, Progress

_MOST_QUEUED = 100_000
"""Calls that are read ahead for all models together; a call takes about a kilobyte."""


class ModelQueues:
    """A queue for each model. Requests are read while the queues of their first calls have places.

    Each model has an equal part of all places, and requests whose first calls are of other models are read
    apart. So no number of calls of a model that takes none holds up another model.

    Args:
        begun: takes a request that has been read, and returns the calls that it can make first.

    Attributes:
        waiting: the calls that wait, by model; not to be changed.
    """

    def __init__(
        self, app: Application, book: Book, begun: Callable[[Progress], Iterable[PlannedCall]]
    ) -> None:
        self._book, self._begun = book, begun
        self.waiting: dict[str, deque[PlannedCall]] = {model: deque() for model in app.models}
        self._num_places = max(1, _MOST_QUEUED // max(1, len(self.waiting)))
        numbers: dict[frozenset[str], array[int]] = {}
        for number in range(len(book.requests)):
            if first := book.first_nodes(number):
                models = frozenset(app.node(name).model for name in first)
                numbers.setdefault(models, array("Q")).append(number)
        self._unread = {models: book.ready(some) for models, some in numbers.items()}

    def take(self, model: str) -> PlannedCall | None:
        """Remove and return the next call of a model; None if it has none now."""
        waiting = self.waiting[model]
        while not waiting and self._read(model):
            pass
        return waiting.popleft() if waiting else None

    def add(self, calls: Iterable[PlannedCall]) -> None:
        """Add calls at the end."""
        for call in calls:
            self.waiting[self._book.model_of(call)].append(call)

    def put_back(self, model: str, call: PlannedCall) -> None:
        """Add a call that is to be the next one of its model."""
        self.waiting[model].appendleft(call)

    def _read(self, model: str) -> bool:
        """Read a request with a first call of a model; return whether one was read, or may be."""
        for models, unread in self._unread.items():
            if model in models and all(len(self.waiting[one]) < self._num_places for one in models):
                progress = next(unread, None)
                if progress is None:
                    del self._unread[models]
                else:
                    self.add(self._begun(progress))
                return True
        return False
