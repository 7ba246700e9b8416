"""The servers of a simulated run that fail for a while, and the health checks that find them well again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from stretto.model.errors import (
    BadServer,
    ConfigError,
    EngineBusy,
    EngineFailure,
    EngineTimeout,
    EngineUnavailable,
    EngineUnreachable,
)
from stretto.runtime.probing import ProbeTimes, asked_rest_s, is_suspicious
from stretto.sched.engine_events import InstanceReady, InstanceSuspected
from stretto.sched.messages import Event
from stretto.sim.instances import InstanceKey, SimulatedInstances
from stretto.sim.virtual_time import VirtualTime

_NO_EVENTS: Sequence[Event] = ()


OutageKind: TypeAlias = Literal["refused", "reset", "silent", "error", "overloaded", "wrong"]


def check_times(fault: object, *times_s: float) -> None:
    if not all(0 <= time_s < math.inf for time_s in times_s):
        raise ConfigError(f"a fault has finite times, and none is negative: {fault}")


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
        check_times(self, self.from_s, self.until_s, self.silence_s, self.rest_s)
        if self.kind not in get_args(OutageKind):
            raise ConfigError(f"an outage is one of {', '.join(get_args(OutageKind))}; got {self.kind!r}")


class Outages:
    """The outages of a simulated run: what fails, when it is reported, and when a suspect is well again.

    A failure makes the instance suspect, as in the runtime. Then its server is asked, ever
    less often, whether it answers.
    """

    def __init__(self, outages: Sequence[Outage], time: VirtualTime, instances: SimulatedInstances) -> None:
        self._outages = outages
        self._time = time
        self._instances = instances
        self._failing: set[tuple[InstanceKey, int]] = set()
        self._probed: dict[InstanceKey, ProbeTimes] = {}
        self._suspects: set[InstanceKey] = set()
        for outage in self._outages:
            if outage.kind not in ("overloaded", "wrong"):
                self._plan(outage)

    def refuses(
        self, key: InstanceKey, work: int, report: Callable[[EngineFailure], Event], *, others_serve: bool
    ) -> bool:
        """Return whether new work fails at an instance now; its failure is reported when it is known.

        Args:
            work: number of the task or batch, unique at its instance.
            report: makes the event that reports the failure.
            others_serve: whether other instances serve, to which the work could go.
        """
        now_s = self._time.now_s
        outage = self._now(key, now_s)
        if outage is None:
            return False
        known_s = now_s + (outage.silence_s if outage.kind == "silent" else 0.0)
        error = _error(key, outage, is_new=True)
        self._fail(key, work, report, error, known_s, others_serve=others_serve)
        return True

    def forget(self, key: InstanceKey, work: int) -> None:
        """Report no failure of work that was given up."""
        self._failing.discard((key, work))

    def worked(self, key: InstanceKey) -> None:
        """Note that an instance has done work, so that its health is checked often again."""
        if key in self._probed:
            self._probed[key].worked()

    def _plan(self, outage: Outage) -> None:
        """Let what runs when an outage begins fail."""

        def begin() -> Sequence[Event]:
            known_s = self._time.now_s + (outage.silence_s if outage.kind == "silent" else 0.0)
            for key, work, report in self._instances.break_off(outage.engine, outage.instance):
                self._fail(key, work, report, _error(key, outage, is_new=False), known_s)
            return _NO_EVENTS

        self._time.at(outage.from_s, begin)

    def _now(self, key: InstanceKey, now_s: float) -> Outage | None:
        place = key[0], self._instances.slot_of(key)
        found = (one for one in self._outages if (one.engine, one.instance) == place)
        return next((one for one in found if one.from_s <= now_s < one.until_s), None)

    def _fail(
        self,
        key: InstanceKey,
        work: int,
        report: Callable[[EngineFailure], Event],
        error: EngineFailure,
        known_s: float,
        *,
        others_serve: bool = True,
    ) -> None:
        self._failing.add((key, work))

        def happen() -> Sequence[Event]:
            if (key, work) not in self._failing or self._instances.slot_of(key) is None:
                return _NO_EVENTS
            self._failing.discard((key, work))
            if not is_suspicious(error, others_serve=others_serve):
                return (report(error),)
            seconds = asked_rest_s(error)
            self._suspect(key, seconds)
            return InstanceSuspected(*key, error.message, seconds), report(error)

        self._time.at(known_s, happen)

    def _suspect(self, key: InstanceKey, seconds: float) -> None:
        times = self._probed.setdefault(key, ProbeTimes())
        times.rest(self._time.now_s + seconds)
        if key not in self._suspects:
            self._suspects.add(key)
            self._time.at(times.next_s(self._time.now_s), lambda: self._probe(key))

    def _probe(self, key: InstanceKey) -> Sequence[Event]:
        now_s = self._time.now_s
        if self._instances.slot_of(key) is None:
            return _NO_EVENTS
        if now_s < self._probed[key].rests_until_s:
            self._time.at(self._probed[key].rests_until_s, lambda: self._probe(key))
            return _NO_EVENTS
        outage = self._now(key, now_s)
        if outage is not None and not outage.is_healthy:
            self._time.at(self._probed[key].next_s(now_s), lambda: self._probe(key))
            return _NO_EVENTS
        self._suspects.discard(key)
        return (InstanceReady(*key),)


def _error(key: InstanceKey, outage: Outage, *, is_new: bool) -> EngineFailure:
    """Return the failure of a request, as the client of a server would raise it."""
    name = f"{key[0]}/{key[1]}"
    match outage.kind:
        case "refused" if is_new:
            return EngineUnreachable(f"{name} took no connection")
        case "overloaded":
            return EngineBusy(f"{name} answered 429", retry_after_s=outage.rest_s)
        case "silent":
            return EngineTimeout(f"{name} was silent for {outage.silence_s:g} s")
        case "wrong":
            return BadServer(f"{name} answered 404: there is no such model")
        case "error":
            return EngineUnavailable(f"{name} answered 500")
    return EngineUnavailable(f"{name} broke off")
