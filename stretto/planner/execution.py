"""What a plan does when it is carried out in virtual time: spans of replicas, and the end."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.planner.plan import PlannedReplica


@dataclass(frozen=True, slots=True)
class ReplicaSpan:
    """The time that a replica holds its devices: from its start, when it loads, to its end.

    Attributes:
        busy_s: seconds in which it computed.
        waits_s: times from and until which it was loaded, and waited for input.
    """

    replica: PlannedReplica
    start_s: float
    ready_s: float
    end_s: float
    busy_s: float
    waits_s: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Execution:
    """A plan carried out in virtual time.

    Attributes:
        ended_s: time at which each node is done.
    """

    makespan_s: float
    spans: tuple[ReplicaSpan, ...]
    ended_s: dict[str, float]

    def idle_share(self, num_devices: int) -> float:
        """Return the share of the devices' time in which they do not compute, loading included."""
        busy_s = sum(span.busy_s * span.replica.tp for span in self.spans)
        return 1 - busy_s / (self.makespan_s * num_devices)
