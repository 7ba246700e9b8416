"""How requests of an LLM engine get from its queue to an instance: what the two ways have in common.

`place_late.py` takes a request from the queue when an instance has room. `place_early.py` binds it to an
instance when it comes. The placement policy says which of them it wants (`Placement.binds`).
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
    """A request that goes to an instance now: the item `lo` of an entry that waits in `queue`."""

    queue: EngineQueue
    entry: Entry
    request: PlacementRequest
    choice: Choice


class Describe(Protocol):
    """Tells what a placement policy is to know of the next item of an entry."""

    def __call__(
        self, entry: Entry, now_s: float, bound_to: InstanceId | None = None, ahead_s: float = 0.0
    ) -> PlacementRequest: ...


class Placing(Protocol):
    """Places requests that wait.

    Attributes:
        not_before_s: time before which nothing more is taken though there is room, from the last `place`.
    """

    not_before_s: float | None

    def place(self, now_s: float) -> Iterator[Placed]:
        """Yield requests that go out now, in order, until nothing more fits.

        Whoever iterates takes each from its queue and counts it as running before going on.
        """
        ...

    def join(self, instance: InstanceId) -> None:
        """Note that an instance serves."""
        ...

    def leave(self, instance: InstanceId) -> None:
        """Note that an instance does not serve any more; what waits for it is placed anew."""
        ...

    def freed(self, instance: InstanceId) -> None:
        """Note that a request has left an instance that ran it."""
        ...

    def end_query(self, query: str) -> None:
        """Drop what is bound of a query."""
        ...

    def withdraw(self, query: str, node: int) -> None:
        """Drop what is bound of one node of a query."""
        ...

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Note that something else is asked of nodes of a query than before."""
        ...

    def clear(self) -> None:
        """Forget all that is bound, after a bug in an order."""
        ...

    def bound(self) -> Collection[Entry]:
        """Return the entries that wait in the queues of instances, one item each."""
        ...

    def check_invariants(self) -> None:
        """Check that what is bound agrees with what the views of instances say."""
        ...
