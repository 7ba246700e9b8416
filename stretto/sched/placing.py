"""How requests of an LLM engine get from its queue to an instance: what the two ways have in common.

Late (`place_late.py`), a request stays in the engine's queue until an instance has room for it. Early
(`place_early.py`), it is bound to an instance when it comes, and waits there. The placement policy, which
chooses the instances, says which of them it wants (`Placement.binds`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice, PlacementRequest
from stretto.record import record
from stretto.sched.demand import Demand
from stretto.sched.engine_queue import EngineQueue
from stretto.sched.request import Entry


@record
class Placed:
    """A request that is to be sent to an instance now: item `lo` of `entry` (one step's work), which waits in
    `queue`.
    """

    queue: EngineQueue
    entry: Entry
    request: PlacementRequest
    choice: Choice


class Describe(Protocol):
    """The interface of a function that describes the next item of a queue entry to the placement policy."""

    def __call__(
        self, entry: Entry, now_s: float, bound_to: InstanceId | None = None, ahead_s: float = 0.0
    ) -> PlacementRequest: ...


class Placing(Protocol):
    """The interface of what decides which of an LLM engine's waiting requests goes to an instance, to which,
    and when.

    What has to be told of instances and queries does nothing where no request waits for an instance.

    Attributes:
        not_before_s: time before which nothing more is sent though there is room, as found by the last
            `place`; None if it need not wait.
    """

    not_before_s: float | None

    def place(self, now_s: float) -> Iterator[Placed]:
        """Yield the requests that are to be sent to instances now, in order, until nothing more fits.

        The caller must take each from its queue and count it as running before it asks for the next.
        """
        ...

    def join(self, instance: InstanceId) -> None:
        """Begin to send requests to an instance, which serves now."""
        return

    def leave(self, instance: InstanceId) -> None:
        """Send no more requests to an instance. Those that wait for it go back to the engine's queue."""
        return

    def freed(self, instance: InstanceId) -> None:
        """Take into account that a request has left an instance, so that there may be room for others."""
        return

    def end_query(self, query: str) -> None:
        """Drop the requests of a query (one run of an app) that wait in the queues of instances."""
        return

    def withdraw(self, query: str, node: int) -> None:
        """Drop the requests of one node (step) of a query that wait in the queues of instances."""
        return

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Move waiting requests of a query to their new places in the queues of instances, because the
        demands on its nodes have changed.

        The demand on a node (step) says how urgently its result is needed.
        """
        return

    def clear(self) -> None:
        """Drop all requests that wait in the queues of instances, after a bug in a queue order."""
        return

    def bound(self) -> Collection[Entry]:
        """Return the queue entries that wait in the queues of instances, each with one item."""
        ...

    def check_invariants(self) -> None:
        """Check that the queues of instances agree with the counts that the placement policy sees. For
        tests.
        """
        ...
