"""Observing a run: what both drivers tell those who only look on.

An observer hears every event before the schedulers handle it and every action before it is carried out.
Nothing it does may change the run, and nothing that goes wrong in it does: one that raises is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stretto.cluster.kv_events import KVEvent
from stretto.messages import Action, Event

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepsDone:
    """Steps of an LLM instance, run one after the other without a gap, from `start_s` on.

    `ends_s` has the end of each. Each step served `num_sequences` and computed `num_tokens`.
    """

    engine: str
    instance: int
    start_s: float
    ends_s: Sequence[float]
    num_sequences: int
    num_tokens: int


class Observer(Protocol):
    """Sees what happens; a subclass overrides what it cares for. Times are in the driver's seconds."""

    def on_event(self, event: Event, now_s: float) -> None:
        """An event has come in; the schedulers have not handled it yet."""
        return

    def on_action(self, action: Action, now_s: float) -> None:
        """An action is about to be carried out."""
        return

    def on_steps(self, steps: StepsDone) -> None:
        """An LLM instance that is simulated step by step has taken some. Engines of a runtime report none."""
        return

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        """An instance that reports what its prefix cache holds has reported changes.

        The same report comes as an event right after, in either driver.
        """
        return


class Observers:
    """The observers of one driver; false when there are none.

    An observer that raises hears no more: the log says so, and `dropped` has it with its exception.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)
        self.dropped: list[tuple[Observer, Exception]] = []

    def __bool__(self) -> bool:
        return bool(self._observers)

    def on_event(self, event: Event, now_s: float) -> None:
        """Tell all of them."""
        for observer in self._observers:
            try:
                observer.on_event(event, now_s)
            except Exception as error:
                self._drop(observer, error)

    def on_action(self, action: Action, now_s: float) -> None:
        """Tell all of them."""
        for observer in self._observers:
            try:
                observer.on_action(action, now_s)
            except Exception as error:
                self._drop(observer, error)

    def on_steps(self, steps: StepsDone) -> None:
        """Tell all of them."""
        for observer in self._observers:
            try:
                observer.on_steps(steps)
            except Exception as error:
                self._drop(observer, error)

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        """Tell all of them."""
        for observer in self._observers:
            try:
                observer.on_kv(engine, instance, events, now_s)
            except Exception as error:
                self._drop(observer, error)

    def _drop(self, observer: Observer, error: Exception) -> None:
        """Replace the list, which may be being gone through, by one without `observer`."""
        self._observers = [other for other in self._observers if other is not observer]
        self.dropped.append((observer, error))
        _log.warning("%s raised and observes the run no more", type(observer).__name__, exc_info=error)
