"""How requests of an LLM engine get from its queue to an instance: what the two ways have in common.

Late (`place_late.py`), a request stays in the engine's queue until an instance has room for it. Early
(`place_early.py`), it is bound to an instance when it comes, and waits there. The placement policy, which
chooses the instances, says which of them it wants (`Placement.binds`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from typing import Protocol

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.record import record
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry


@record
class Placed:
    """A request that is to be sent to an instance now: item `lo` of `entry`, which waits in `queue`."""

    queue: EngineQueue
    entry: QueueEntry
    request: PlacementRequest
    choice: Choice


class Placing(Protocol):
    """The interface of what moves an LLM engine's waiting requests to instances: it decides which one goes,
    to which instance, and when.

    Methods that tell of instances and queries do nothing by default, which is right where no request waits
    for a particular instance.

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
        """Note that a request has left an instance, so that there may be room for others."""
        return

    def end_query(self, query: str) -> None:
        """Drop the requests of a query that wait in the queues of instances."""
        return

    def withdraw(self, query: str, node: int, items: Set[int] | None = None) -> int:
        """Drop the requests of one node of a query, or of some of its items only, that
        wait in the queues of instances. Return their number.
        """
        return 0

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Move the requests of a query that wait for instances to their new places in the
        instances' queues, because some of its nodes are needed more or less urgently now.

        `demands` says, by node, how urgently its result is needed.
        """
        return

    def clear(self) -> None:
        """Drop all requests that wait in the queues of instances, after a bug in a queue order."""
        return

    def bound(self) -> Collection[QueueEntry]:
        """Return the queue entries that wait in the queues of instances, each with one item."""
        ...

    def check_invariants(self) -> None:
        """Check that the queues of instances agree with the counts that the placement policy
        sees. For tests.
        """
        ...
