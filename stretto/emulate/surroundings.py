"""The surroundings of the instance in an emulated LLM: its clock, its faults, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.cluster.kv_events import KVEvent
from stretto.emulate.clock import EmulatedClock
from stretto.emulate.replica_counts import ReplicaCounts
from stretto.sched.messages import Event
from stretto.sched.observer import StepsDone


class EmulatedSurroundings:
    """The surroundings (`Surroundings`) of one emulated instance.

    Args:
        number: rank of the instance among others for what happens at the same time.
        on_kv: called with the changes of the prefix cache.
        report: called with what the instance reports.
        before: called before the instance plans something.

    Attributes:
        factor: times of its predicted time that a step takes which begins now.
    """

    def __init__(
        self,
        clock: EmulatedClock,
        number: int,
        counts: ReplicaCounts,
        on_kv: Callable[[Sequence[KVEvent]], None],
        report: Callable[[Sequence[Event]], None],
        before: Callable[[], None],
    ) -> None:
        self.factor = 1.0
        self._clock = clock
        self._number = number
        self._counts = counts
        self._on_kv = on_kv
        self._report = report
        self._before = before

    @property
    def now_s(self) -> float:
        """Present time, in emulated seconds."""
        return self._clock.now_s

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Plan to call `happen` at the time `at_s`; what it reports goes to the requests."""
        self._before()
        self._clock.at(at_s, lambda: self._report(happen()), self._number)

    def at_last(self, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Plan to call `happen` at the present time, after all else of this time."""
        self._clock.at_last(lambda: self._report(happen()), self._number)

    def slowness(self, engine: str, instance: int, at_s: float) -> float:
        """Return the factor by which steps are slower now than predicted."""
        return self.factor

    def may_be_slow(self, engine: str, instance: int) -> bool:
        """Return that the instance may be slowed down, as a fault on request."""
        return True

    def break_down(self, engine: str, instance: int) -> None:
        """Fail: requests are checked before they come here, so nothing takes the instance down."""
        raise AssertionError("an emulated LLM instance broke down")

    def on_steps(self, steps: StepsDone) -> None:
        """Count steps."""
        self._counts.num_steps += len(steps.ends_s)

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent]) -> None:
        """Pass on changes of the prefix cache."""
        self._on_kv(events)
