"""How requests of an LLM engine get from its queue to an instance: what the two ways have in common.

Late (`place_late.py`), a request stays in the engine's queue until an instance has room for it. Early
(`place_early.py`), it is bound to an instance when it comes, and waits there. The placement policy, which
chooses the instances, says which of them it wants (`Placement.binds`). It chooses by a description of the
request: its lengths, its owner, and where its beginning is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from typing import Protocol

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest, Purpose
from stretto.cluster.prompt_keys import PromptKeys
from stretto.model.record import record
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.expected_outputs import ExpectedOutputs
from stretto.sched.llm.prefills_ahead import PrefillsAhead
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry


class PlacementRequests:
    """A function object that describes the next item of a queue entry to the
    placement policy, which chooses an instance by it.
    """

    def __init__(
        self, outputs: ExpectedOutputs, ahead: PrefillsAhead, keys: PromptKeys, age_limit_s: float
    ) -> None:
        self._outputs = outputs
        self._age_limit_s = age_limit_s
        self._ahead = ahead
        self._keys = keys

    def __call__(
        self, entry: QueueEntry, now_s: float, bound_to: InstanceId | None = None, ahead_s: float = 0.0
    ) -> PlacementRequest:
        """Return the description.

        `bound_to` and `ahead_s` are given for a request that waits at an instance already.
        """
        request = entry.request
        hint = self._ahead.hint_of(request)
        held = {} if hint.instance is None else {hint.instance: hint.num_tokens}
        tenant = request.record.tenant
        return PlacementRequest(
            entry.num_units(entry.lo, entry.lo + 1),
            self._outputs.expected(request),
            self._keys.of(request.prompts[entry.lo - request.lo], tenant),
            held,
            held if hint.is_running else {},
            tenant,
            max(0.0, entry.demand.start_by_s - now_s),
            bound_to,
            ahead_s,
            self.purpose(entry),
        )

    def purpose(self, entry: QueueEntry) -> Purpose:
        """Return what a queue entry is scheduled for now.

        Jobs and groups of two sessions never have one name.
        """
        demand = entry.demand
        is_offline = entry.request.record.criteria == "offline"
        return Purpose(
            demand.preference or ("offline" if is_offline else "throughput"),
            f"{entry.query} {demand.job}" if demand.job else "",
            f"{entry.query} {demand.group}" if demand.group else "",
            entry.arrival_s + self._age_limit_s,
        )


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
