"""Observers of a run: the interface through which both drivers report everything that happens.

An observer gets every event before the schedulers handle it and every action before it is carried out.
It cannot change the run, and its errors do not either: an observer that raises is dropped.
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
    """The base class of observers: a subclass overrides the methods it needs. Times are in the driver's
    seconds.
    """

    def on_event(self, event: Event, now_s: float) -> None:
        """Called with an event that has come in and is not handled yet."""
        return

    def on_action(self, action: Action, now_s: float) -> None:
        """Called with an action that is about to be carried out."""
        return

    def on_steps(self, steps: StepsDone) -> None:
        """Called with steps of an LLM instance that is simulated step by step. A runtime reports none."""
        return

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        """Called with changes of an instance's prefix cache, if the instance reports them.

        The same report comes as an event right after, in either driver.
        """
        return


class Observers:
    """The list of observers of one driver; false when it is empty.

    An observer that raises is dropped: the log says so, and `dropped` has it with its exception.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)
        self.dropped: list[tuple[Observer, Exception]] = []

    def __bool__(self) -> bool:
        return bool(self._observers)

    def on_event(self, event: Event, now_s: float) -> None:
        """Pass an event to all observers."""
        for observer in self._observers:
            try:
                observer.on_event(event, now_s)
            except Exception as error:
                self._drop(observer, error)

    def on_action(self, action: Action, now_s: float) -> None:
        """Pass an action to all observers."""
        for observer in self._observers:
            try:
                observer.on_action(action, now_s)
            except Exception as error:
                self._drop(observer, error)

    def on_steps(self, steps: StepsDone) -> None:
        """Pass steps of an LLM instance to all observers."""
        for observer in self._observers:
            try:
                observer.on_steps(steps)
            except Exception as error:
                self._drop(observer, error)

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        """Pass changes of a prefix cache to all observers."""
        for observer in self._observers:
            try:
                observer.on_kv(engine, instance, events, now_s)
            except Exception as error:
                self._drop(observer, error)

    def _drop(self, observer: Observer, error: Exception) -> None:
        """Remove an observer that raised, by a new list: the old one may be in a loop."""
        self._observers = [other for other in self._observers if other is not observer]
        self.dropped.append((observer, error))
        _log.warning("%s raised and observes the run no more", type(observer).__name__, exc_info=error)
