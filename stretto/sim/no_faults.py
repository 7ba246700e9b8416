"""What may go wrong in a simulated run: nothing, unless its caller derives from this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.model.errors import EngineFailure
from stretto.sched.messages import Event
from stretto.sim.instances import InstanceKey
from stretto.sim.virtual_time import VirtualTime


class NoFaults:
    """The faults of a run that has none. The driver asks it whatever a fault could change.

    Args:
        driver: the driver of the run, before any instance has started.
    """

    def __init__(self, driver: VirtualTime) -> None:
        pass

    def begin(self) -> None:
        """Plan faults: the declared replicas have started, and nothing else has happened."""

    def arriving(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return those of the events of an instant that reach the schedulers."""
        return events

    def slowness(self, key: InstanceKey, at_s: float) -> float:
        """Return the factor by which an instance is slower than usual at the time `at_s`."""
        return 1.0

    def may_be_slow(self, key: InstanceKey) -> bool:
        """Return whether an instance is ever slower than usual."""
        return False

    def report_delays_s(self, engine: str) -> Sequence[float]:
        """Return after how many seconds each copy of the next report of a prefix cache arrives."""
        return (0.0,)

    def refuses(
        self, key: InstanceKey, work: int, report: Callable[[EngineFailure], Event], *, others_serve: bool
    ) -> bool:
        """Return whether new work fails at an instance now; then its failure is reported when it is known.

        Args:
            work: number of the task or batch, unique at its instance.
            report: makes the event that reports the failure.
            others_serve: whether other instances serve, to which the work could go.
        """
        return False

    def forget(self, key: InstanceKey, work: int) -> None:
        """Report no failure of work that was given up."""
