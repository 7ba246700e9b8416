"""Faults of a simulated run, decided beforehand: plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from stretto.model.errors import ConfigError
from stretto.sched.messages import BatchDone, BatchFailed, Event, LLMReport

OutageKind: TypeAlias = Literal["refused", "reset", "silent", "error", "overloaded", "wrong"]


@dataclass(frozen=True, slots=True)
class Death:
    """A planned fault of a simulation: an instance dies at `at_s`.

    A new instance takes its place and takes work from `back_s` on; if that is None, when its model is loaded.
    """

    engine: str
    instance: int
    at_s: float
    back_s: float | None = None

    def __post_init__(self) -> None:
        _check_times(self, self.at_s, self.back_s or 0.0)


@dataclass(frozen=True, slots=True)
class Slowness:
    """A planned fault: work that an instance begins between `from_s` and `until_s` takes `factor` times as
    long.
    """

    engine: str
    instance: int
    from_s: float
    until_s: float
    factor: float

    def __post_init__(self) -> None:
        _check_times(self, self.from_s, self.until_s)
        if not 0 < self.factor < math.inf:
            raise ConfigError(f"a factor is positive and finite: {self}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A planned fault: a period in which an LLM instance refuses new tasks; tasks that it runs already go on.

    Instances of batch engines never refuse.
    """

    engine: str
    instance: int
    from_s: float
    until_s: float

    def __post_init__(self) -> None:
        _check_times(self, self.from_s, self.until_s)


@dataclass(frozen=True, slots=True)
class Outage:
    """A planned fault: a period in which the server of an instance fails, though the instance itself lives.

    What fails makes the instance suspect, until a health check succeeds.

    Attributes:
        kind: how it fails. "refused": it takes no connection. "reset": it closes connections. "silent": it
            answers nothing. "error": it answers with an internal error. "overloaded": it refuses new
            requests, as too many. "wrong": it answers new requests as no server of its API does, or as one
            that has another model. In all but the last two, what runs there when the period begins fails too.
        silence_s: seconds after which a silent request is given up.
        rest_s: seconds for which an overloaded server asks to be left alone.
        is_healthy: whether health checks succeed all the while.
    """

    engine: str
    instance: int
    from_s: float
    until_s: float
    kind: OutageKind
    silence_s: float = 1.0
    rest_s: float = 0.0
    is_healthy: bool = False

    def __post_init__(self) -> None:
        _check_times(self, self.from_s, self.until_s, self.silence_s, self.rest_s)
        if self.kind not in get_args(OutageKind):
            raise ConfigError(f"an outage is one of {', '.join(get_args(OutageKind))}; got {self.kind!r}")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of one simulated run (deaths, slow periods, lost messages and so on), decided before it
    begins.

    Attributes:
        deaths: instances that die.
        slow: periods in which instances are slow.
        refusals: periods in which LLM instances refuse new tasks.
        lost_messages: numbers of the messages of instances that never arrive, by engine; messages are counted
            from 0 in the order of arrival. Only the engine's `timeout_s` helps against these.
        kv_delay_s: seconds by which reports of what prefix caches hold are late.
        cancels: (query, time) pairs of callers that cancel.
        missed_kv: numbers of the reports of what prefix caches hold that never arrive, by engine; reports are
            counted from 0.
        doubled_kv: numbers of such reports that arrive twice.
        outages: periods in which servers fail.
    """

    deaths: tuple[Death, ...] = ()
    slow: tuple[Slowness, ...] = ()
    lost_messages: Mapping[str, frozenset[int]] = field(default_factory=dict)
    kv_delay_s: float = 0.0
    cancels: tuple[tuple[str, float], ...] = ()
    refusals: tuple[Refusal, ...] = ()
    missed_kv: Mapping[str, frozenset[int]] = field(default_factory=dict)
    doubled_kv: Mapping[str, frozenset[int]] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()

    def __post_init__(self) -> None:
        _check_times(self, self.kv_delay_s, *(at_s for _, at_s in self.cancels))

    def slowness(self, engine: str, instance: int, at_s: float) -> float:
        """Return the factor by which an instance is slower than usual at the time `at_s`; 1 outside slow
        periods.
        """
        factor = 1.0
        for slow in self.slow:
            if (slow.engine, slow.instance) == (engine, instance) and slow.from_s <= at_s < slow.until_s:
                factor *= slow.factor
        return factor

    def refuses_until_s(self, engine: str, instance: int, at_s: float) -> float:
        """Return the time at which an instance accepts tasks again; `at_s` itself if it accepts them then."""
        for refusal in sorted(self.refusals, key=lambda refusal: refusal.from_s):
            if (refusal.engine, refusal.instance) == (engine, instance) and refusal.from_s <= at_s:
                at_s = max(at_s, refusal.until_s)
        return at_s


class LostMessages:
    """A filter that drops the messages of instances that a fault plan marks as lost, by their number. It
    counts the messages that it has seen.
    """

    def __init__(self, lost: Mapping[str, frozenset[int]]) -> None:
        self._lost = lost
        self._num_heard = dict.fromkeys(lost, 0)

    def takes(self, event: Event) -> bool:
        """Return whether the fault plan lets this message from an instance get lost, so that the schedulers
        never see it.

        Messages are counted, so this must be called exactly once for each, in the order of their coming.
        """
        if not isinstance(event, BatchDone | BatchFailed | LLMReport) or event.engine not in self._lost:
            return False
        number = self._num_heard[event.engine]
        self._num_heard[event.engine] += 1
        return number in self._lost[event.engine]


class FaultyReports:
    """A counter of the reports of what prefix caches hold, which says how often each one arrives."""

    def __init__(self, faults: FaultPlan) -> None:
        self._faults = faults
        self._num: dict[str, int] = {}

    def num_copies(self, engine: str) -> int:
        """Return how often the next report of an instance of an engine arrives: 0, 1 or 2 times.

        Reports are counted, so this must be called exactly once for each.
        """
        number = self._num.get(engine, 0)
        self._num[engine] = number + 1
        if number in self._faults.missed_kv.get(engine, ()):
            return 0
        return 2 if number in self._faults.doubled_kv.get(engine, ()) else 1


def _check_times(fault: object, *times_s: float) -> None:
    if not all(0 <= time_s < math.inf for time_s in times_s):
        raise ConfigError(f"a fault has finite times, and none is negative: {fault}")
