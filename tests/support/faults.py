"""Faults of a simulated run, decided beforehand: plain data, and what lets them happen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stretto.model.errors import ConfigError, EngineFailure, EngineUnavailable
from stretto.model.tasks import Done
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceReady, InstanceSuspected, LLMReport
from stretto.sched.messages import Event
from stretto.sim.driver import VirtualDriver
from stretto.sim.instances import InstanceKey
from stretto.sim.no_faults import NoFaults
from support.outages import Outage, Outages, check_times


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
        check_times(self, self.at_s, self.back_s or 0.0)


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
        check_times(self, self.from_s, self.until_s)
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
        check_times(self, self.from_s, self.until_s)


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
        check_times(self, self.kv_delay_s, *(at_s for _, at_s in self.cancels))

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

    def __call__(self, driver: VirtualDriver) -> PlannedFaults:
        """Return what lets these faults happen in the run of a driver."""
        return PlannedFaults(self, driver)


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


class PlannedFaults(NoFaults):
    """The faults of a plan, as they happen in the run of a driver."""

    def __init__(self, plan: FaultPlan, driver: VirtualDriver) -> None:
        self._plan = plan
        self._driver = driver
        self._lost = LostMessages(plan.lost_messages)
        self._reports = FaultyReports(plan)
        self._refusing: set[InstanceKey] = set()
        self._outages = Outages(plan.outages, driver, driver.instances)

    def begin(self) -> None:
        """Plan deaths and cancelled queries."""
        for death in self._plan.deaths:
            self._driver.lose(death.engine, death.instance, death.at_s, back_s=death.back_s)
        for query, at_s in self._plan.cancels:
            self._driver.cancel(query, at_s)

    def arriving(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events that are not lost."""
        kept = [event for event in events if not self._lost.takes(event)]
        for event in kept:
            if isinstance(event, BatchDone) or (
                isinstance(event, LLMReport) and isinstance(event.event, Done)
            ):
                self._outages.worked((event.engine, event.instance))
        return kept

    def slowness(self, key: InstanceKey, at_s: float) -> float:
        """Return the factor by which an instance is slower than usual."""
        return self._plan.slowness(key[0], self._driver.instances.slots[key], at_s)

    def may_be_slow(self, key: InstanceKey) -> bool:
        """Return whether a slow period of an instance is planned."""
        slot = key[0], self._driver.instances.slots[key]
        return any((slow.engine, slow.instance) == slot for slow in self._plan.slow)

    def report_delays_s(self, engine: str) -> Sequence[float]:
        """Return the delay of each copy of the next report of a prefix cache."""
        return (self._plan.kv_delay_s,) * self._reports.num_copies(engine)

    def refuses(
        self, key: InstanceKey, work: int, report: Callable[[EngineFailure], Event], *, others_serve: bool
    ) -> bool:
        """Return whether new work fails at an instance now, by an outage or a refusal of an LLM.

        The first refusal announces the end of the period, when the instance says that it is ready again.
        """
        if self._outages.refuses(key, work, report, others_serve=others_serve):
            return True
        driver = self._driver
        if key not in driver.instances.llms:
            return False
        answers_s = self._plan.refuses_until_s(key[0], driver.instances.slots[key], driver.now_s)
        if answers_s <= driver.now_s:
            return False
        error = EngineUnavailable(f"{key[0]}/{key[1]} refuses tasks")
        refused = InstanceSuspected(*key, error.message), report(error)
        driver.at(driver.now_s, lambda: refused if key in driver.instances.replicas else ())
        if key not in self._refusing:
            self._refusing.add(key)
            driver.at(answers_s, lambda: self._answer_again(key))
        return True

    def forget(self, key: InstanceKey, work: int) -> None:
        """Report no failure of work that was given up."""
        self._outages.forget(key, work)

    def _answer_again(self, key: InstanceKey) -> Sequence[Event]:
        self._refusing.discard(key)
        return (InstanceReady(*key),) if key in self._driver.instances.replicas else ()
