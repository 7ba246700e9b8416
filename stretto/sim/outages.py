"""The servers of a simulated run that fail for a while, and the health checks that find them well again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stretto.cluster.probe_times import ProbeTimes, asked_rest_s, is_suspicious
from stretto.model.errors import (
    BadServer,
    EngineBusy,
    EngineFailure,
    EngineTimeout,
    EngineUnavailable,
    EngineUnreachable,
)
from stretto.sched.messages import Event, InstanceReady, InstanceSuspected
from stretto.sim.faults import FaultPlan, Outage

Key = tuple[str, int]

_NO_EVENTS: Sequence[Event] = ()


class Servers(Protocol):
    """The interface of the simulated instances that may fail."""

    @property
    def now_s(self) -> float:
        """The present time."""
        ...

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]]) -> None:
        """Plan to call `happen` at a time."""
        ...

    def slot_of(self, key: Key) -> int | None:
        """Return the slot of an instance; None if it is gone."""
        ...

    def break_off(self, engine: str, slot: int) -> list[tuple[Key, int, Callable[[EngineFailure], Event]]]:
        """Stop what runs at the instance in a slot: return its key, a number of the work, and a function that
        makes the report of its failure.
        """
        ...


class Outages:
    """The outages of a simulated run: what fails, when it is reported, and when a suspect is well again.

    A failure makes the instance suspect, as in the runtime. Then its server is asked, ever
    less often, whether it answers.
    """

    def __init__(self, faults: FaultPlan, servers: Servers) -> None:
        self._outages = faults.outages
        self._servers = servers
        self._failing: set[tuple[Key, int]] = set()
        self._probed: dict[Key, ProbeTimes] = {}
        self._suspects: set[Key] = set()
        for outage in self._outages:
            if outage.kind not in ("overloaded", "wrong"):
                self._plan(outage)

    def refuses(
        self, key: Key, work: int, report: Callable[[EngineFailure], Event], *, others_serve: bool
    ) -> bool:
        """Return whether new work fails at an instance now; its failure is reported when it is known.

        Args:
            work: number of the task or batch, unique at its instance.
            report: makes the event that reports the failure.
            others_serve: whether other instances serve, to which the work could go.
        """
        now_s = self._servers.now_s
        outage = self._now(key, now_s)
        if outage is None:
            return False
        known_s = now_s + (outage.silence_s if outage.kind == "silent" else 0.0)
        error = _error(key, outage, is_new=True)
        self._fail(key, work, report, error, known_s, others_serve=others_serve)
        return True

    def forget(self, key: Key, work: int) -> None:
        """Report no failure of work that was given up."""
        self._failing.discard((key, work))

    def worked(self, key: Key) -> None:
        """Note that an instance has done work, so that its health is checked often again."""
        if key in self._probed:
            self._probed[key].worked()

    def _plan(self, outage: Outage) -> None:
        """Let what runs when an outage begins fail."""

        def begin() -> Sequence[Event]:
            known_s = self._servers.now_s + (outage.silence_s if outage.kind == "silent" else 0.0)
            for key, work, report in self._servers.break_off(outage.engine, outage.instance):
                self._fail(key, work, report, _error(key, outage, is_new=False), known_s)
            return _NO_EVENTS

        self._servers.at(outage.from_s, begin)

    def _now(self, key: Key, now_s: float) -> Outage | None:
        found = (
            one for one in self._outages if (one.engine, one.instance) == (key[0], self._servers.slot_of(key))
        )
        return next((one for one in found if one.from_s <= now_s < one.until_s), None)

    def _fail(
        self,
        key: Key,
        work: int,
        report: Callable[[EngineFailure], Event],
        error: EngineFailure,
        known_s: float,
        *,
        others_serve: bool = True,
    ) -> None:
        self._failing.add((key, work))

        def happen() -> Sequence[Event]:
            if (key, work) not in self._failing or self._servers.slot_of(key) is None:
                return _NO_EVENTS
            self._failing.discard((key, work))
            if not is_suspicious(error, others_serve=others_serve):
                return (report(error),)
            seconds = asked_rest_s(error)
            self._suspect(key, seconds)
            return InstanceSuspected(*key, error.message, seconds), report(error)

        self._servers.at(known_s, happen)

    def _suspect(self, key: Key, seconds: float) -> None:
        times = self._probed.setdefault(key, ProbeTimes())
        times.rest(self._servers.now_s + seconds)
        if key not in self._suspects:
            self._suspects.add(key)
            self._servers.at(times.next_s(self._servers.now_s), lambda: self._probe(key))

    def _probe(self, key: Key) -> Sequence[Event]:
        now_s = self._servers.now_s
        if self._servers.slot_of(key) is None:
            return _NO_EVENTS
        if now_s < self._probed[key].rests_until_s:
            self._servers.at(self._probed[key].rests_until_s, lambda: self._probe(key))
            return _NO_EVENTS
        outage = self._now(key, now_s)
        if outage is not None and not outage.is_healthy:
            self._servers.at(self._probed[key].next_s(now_s), lambda: self._probe(key))
            return _NO_EVENTS
        self._suspects.discard(key)
        return (InstanceReady(*key),)


def _error(key: Key, outage: Outage, *, is_new: bool) -> EngineFailure:
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
