"""Observers of a run: the interface through which a run reports everything that happens.

A driver shows them every event before the schedulers handle it, and every
action of the schedulers before it is carried out. An observer cannot change the run, and its errors do not
either: an observer that raises is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias, get_args

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.placement_request import PromptKey
from stretto.model.foreign import raised
from stretto.model.record import record
from stretto.sched.actions import Action
from stretto.sched.messages import Event
from stretto.sched.request_trace import RequestTrace

_log = logging.getLogger(__name__)


@record
class StepsDone:
    """A series of completed steps of a simulated LLM instance, which ran without a gap from `start_s` on.

    `ends_s` has the end time of each step. Each step served `num_sequences` sequences and computed
    `num_tokens` tokens.
    """

    engine: str
    instance: int
    start_s: float
    ends_s: Sequence[float]
    num_sequences: int
    num_tokens: int


class Observer(Protocol):
    """The base class of observers: objects that are told of everything that happens in a run, for example to
    record it.

    A subclass overrides the methods it needs. In a message, a `Reference` may stand in
    place of a large value. Times are seconds by the clock of the runtime or the simulator.
    """

    def on_event(self, event: Event, now_s: float) -> None:
        """Called with an event (a message that tells the schedulers what has happened) before they handle
        it.
        """
        return

    def on_action(self, action: Action, now_s: float) -> None:
        """Called with an action (a decision of the schedulers, such as to start a batch) before it is carried
        out.
        """
        return

    def on_steps(self, steps: StepsDone) -> None:
        """Called with completed steps of an LLM instance that is simulated step by step.

        A real run reports none.
        """
        return

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        """Called with changes of an instance's prefix cache (blocks stored and removed), if the instance
        reports them.

        The same report comes right after to `on_event`.
        """
        return

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Called with a request to a model when it begins to wait for its turn. The trace goes on."""
        return

    def on_request_keyed(self, trace: RequestTrace, key: PromptKey) -> None:
        """Called with the key of the prompt of a request that has arrived, if it is placed by its prefix."""
        return

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Called with a request to a model that has ended, however it has."""
        return


_Name: TypeAlias = Literal["on_request_arrived", "on_request_keyed", "on_request_ended"]
_OF_REQUESTS: tuple[_Name, ...] = get_args(_Name)
RequestEvent: TypeAlias = tuple[_Name, RequestTrace, "float | PromptKey"]
"""What has happened to a request: the method of observers that is called for it, and the two arguments."""


class Observers:
    """The observers of one run; each call is passed on to all of them. The object is false when there are
    none.

    An observer that raises is removed: the log says so, and `dropped` lists it with its exception.

    Attributes:
        are_any: whether there are observers.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.dropped: list[tuple[Observer, BaseException]] = []
        self._set(list(observers))

    def __bool__(self) -> bool:
        return self.are_any

    def add(self, observer: Observer) -> None:
        """Let one more observer see the run from now on."""
        self._set([*self._observers, observer])

    def _set(self, observers: list[Observer]) -> None:
        self._observers = observers
        self.are_any = bool(observers)
        self._of_arrivals = [one for one in observers if _sees(one, "on_request_arrived")]

    def on_event(self, event: Event, now_s: float) -> None:
        """Pass an event to all observers."""
        for observer in self._observers:
            try:
                observer.on_event(event, now_s)
            except raised() as error:
                self._drop(observer, error)

    def on_action(self, action: Action, now_s: float) -> None:
        """Pass an action (a decision of the schedulers) to all observers."""
        for observer in self._observers:
            try:
                observer.on_action(action, now_s)
            except raised() as error:
                self._drop(observer, error)

    def on_steps(self, steps: StepsDone) -> None:
        """Pass completed steps of a simulated LLM instance to all observers."""
        for observer in self._observers:
            try:
                observer.on_steps(steps)
            except raised() as error:
                self._drop(observer, error)

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        """Pass changes of an instance's prefix cache to all observers."""
        for observer in self._observers:
            try:
                observer.on_kv(engine, instance, events, now_s)
            except raised() as error:
                self._drop(observer, error)

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Pass a request that has arrived to all observers."""
        for observer in self._of_arrivals:
            try:
                observer.on_request_arrived(trace, now_s)
            except raised() as error:
                self._drop(observer, error)

    def on_request_keyed(self, trace: RequestTrace, key: PromptKey) -> None:
        """Pass the key of the prompt of a request to all observers."""
        for observer in self._observers:
            try:
                observer.on_request_keyed(trace, key)
            except raised() as error:
                self._drop(observer, error)

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Pass a request that has ended to all observers."""
        for observer in self._observers:
            try:
                observer.on_request_ended(trace, now_s)
            except raised() as error:
                self._drop(observer, error)

    def on_requests(self, happened: Sequence[RequestEvent]) -> None:
        """Show each observer in turn what has happened to requests: code that runs again and again takes less
        time.
        """
        for observer in self._observers:
            calls = {name: getattr(observer, name) for name in _OF_REQUESTS if _sees(observer, name)}
            try:
                for name, trace, value in happened:
                    if (call := calls.get(name)) is not None:
                        call(trace, value)
            except raised() as error:
                self._drop(observer, error)

    def _drop(self, observer: Observer, error: BaseException) -> None:
        """Remove an observer that raised, by a new list: the old one may be in a loop."""
        self._set([other for other in self._observers if other is not observer])
        self.dropped.append((observer, error))
        _log.warning("%s raised and observes the run no more", type(observer).__name__, exc_info=error)


def _sees(observer: Observer, name: _Name) -> bool:
    """Return whether an observer has a method of its own, which does something."""
    return getattr(type(observer), name, None) is not getattr(Observer, name)
