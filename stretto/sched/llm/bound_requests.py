"""Requests that are bound to an instance, that is, wait in its own queue until they fit there.

The views of instances, which placement policies see, count what waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.record import record
from stretto.model.sorted_queue import SortedQueue
from stretto.sched.by_step import ByStep
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.loads import InstanceLoads
from stretto.sched.queries.request import QueueEntry


@record
class BoundRequest:
    """A request that was assigned to an instance and waits in that instance's queue until it fits there: one
    item of a queue entry.

    Attributes:
        share_s: predicted seconds by which it delays requests that wait behind it.
        prefill_s: predicted seconds of its prefill, a part of these.
        at_s: time at which it was assigned.
    """

    entry: QueueEntry
    instance: InstanceId
    request: PlacementRequest
    choice: Choice
    share_s: float
    prefill_s: float
    at_s: float


class BoundRequests:
    """The requests that have been assigned to instances and wait until they fit there: one queue for each
    instance, and an index by query and node.

    All operations take O(log n) for each request that they concern.

    Attributes:
        to_admit: instances where something may go out now.
    """

    def __init__(self, new_queue: Callable[[], EngineQueue], loads: InstanceLoads) -> None:
        self._new_queue = new_queue
        self._loads = loads
        self._queues: dict[InstanceId, EngineQueue] = {}
        self._bound: dict[QueueEntry, BoundRequest] = {}
        self._by_step = ByStep[QueueEntry]()
        self._by_wait = SortedQueue[InstanceId]()
        self._waits_s: dict[InstanceId, float] = {}
        self.to_admit: dict[InstanceId, None] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def entries(self) -> Collection[QueueEntry]:
        """Return all requests that wait for an instance, each as a queue entry with one item."""
        return self._bound.keys()

    def of(self, entry: QueueEntry) -> BoundRequest:
        """Return the record of a waiting request, which says for which instance it waits. `entry` is the
        request as a queue entry of one item.
        """
        return self._bound[entry]

    def queue(self, instance: InstanceId) -> EngineQueue:
        """Return the queue of requests that wait for an instance; an empty queue if there are none."""
        if instance not in self._queues:
            self._queues[instance] = self._new_queue()
        return self._queues[instance]

    def longest(self) -> Iterator[InstanceId]:
        """Yield the instances for which something waits, those with most predicted seconds of waiting work
        first.

        Nothing may be added or removed meanwhile.
        """
        return iter(self._by_wait)

    def add(self, entry: QueueEntry, request: PlacementRequest, choice: Choice, now_s: float) -> None:
        """Put a request (a queue entry of one item) into the queue of the instance that was chosen for it."""
        instance = choice.instance
        view, held = self._loads.table.get(instance), choice.held_tokens
        share_s = 0.0 if view is None else request.share_s(view, held)
        prefill_s = 0.0 if view is None else view.profile.batch_s(max(0, request.num_tokens - held))
        self._bound[entry] = BoundRequest(entry, instance, request, choice, share_s, prefill_s, now_s)
        self._by_step.add(entry.query, entry.request.node.id, entry)
        self._loads.waiting.wait(instance, request, share_s, prefill_s, now_s)
        self._sort(instance)
        self.queue(instance).add(entry)
        self.to_admit[instance] = None

    def remove(self, entry: QueueEntry) -> BoundRequest:
        """Remove a request from the queue of the instance that it waits for, because it goes to another
        instance or its result is no longer wanted; return its record.
        """
        instance = self._bound[entry].instance
        self._queues[instance].remove(entry)
        bound = self.take(entry)
        self.to_admit[instance] = None  # what it kept waiting may go out now
        return bound

    def leave(self, instance: InstanceId) -> list[QueueEntry]:
        """Remove all requests that wait for an instance which takes no more work, and its queue; return them
        as queue entries, in order of arrival.

        Requests that were already sent to the instance are not affected.
        """
        queue = self._queues.pop(instance, None)
        left = [] if queue is None else sorted(queue, key=lambda entry: entry.arrival)
        for entry in left:
            self.take(entry)
        return left

    def of_query(self, query: str) -> list[QueueEntry]:
        """Return the waiting requests of a query as queue entries, node by node,
        those of a node in the order in which they were added.
        """
        return self._by_step.of_query(query)

    def of_node(self, query: str, node: int) -> list[QueueEntry]:
        """Return the waiting requests of one node of a query as queue entries, in
        the order in which they were added.
        """
        return self._by_step.of_node(query, node)

    def clear(self) -> None:
        """Remove all requests that wait for any instance. Requests that were already sent to an instance are
        not affected.
        """
        for entry in list(self._bound):
            self.take(entry)
        for queue in self._queues.values():
            queue.clear()

    def check_invariants(self) -> None:
        """Check that the queues of the instances agree with the indexes and with the counts that placement
        policies see. For tests.
        """
        by_queue = [entry for queue in self._queues.values() for entry in queue]
        assert set(by_queue) == set(self._bound)
        assert {entry for query in self._by_step for entry in self.of_query(query)} == set(self._bound)
        assert all(entry.hi == entry.lo + 1 for entry in by_queue)
        assert sorted(self._by_wait) == sorted(i for i, queue in self._queues.items() if queue)
        for view in self._loads.table:
            waiting = [one for one in self._bound.values() if one.instance == view.id]
            assert view.num_waiting == len(waiting)
            requests = [one.request for one in waiting]
            running = [one.placed for one in self._loads.of(view.id).values() if not one.is_offline]
            num_repeated = self._loads.waiting.num_repeated(view.id, running, requests)
            assert view.waiting_tokens == sum(one.all_tokens for one in requests) - num_repeated
            assert abs(view.waiting_s - sum(one.share_s for one in waiting)) < 1e-6
            assert not waiting or view.state == "serving"

    def take(self, entry: QueueEntry) -> BoundRequest:
        """Stop tracking a request that is sent to its instance now; return its record.

        The caller removes the request from the instance's queue.
        """
        bound = self._bound.pop(entry)
        self._by_step.remove(entry.query, entry.request.node.id, entry)
        self._loads.waiting.wait_no_more(bound.instance, bound.request, bound.share_s, bound.prefill_s)
        self._sort(bound.instance)
        return bound

    def _sort(self, instance: InstanceId) -> None:
        """Put an instance in its place among those for which something waits."""
        if (wait_s := self._waits_s.pop(instance, None)) is not None:
            self._by_wait.remove((-wait_s, instance))
        view = self._loads.table.get(instance)
        if view is not None and view.num_waiting:
            self._waits_s[instance] = view.waiting_s
            self._by_wait.add((-view.waiting_s, instance), instance)


def anew(entry: QueueEntry, item: int, moved_from: InstanceId | None = None) -> QueueEntry:
    """Return one item of an entry as an entry that has waited as long, for another queue."""
    anew = entry.again(item, item + 1, attempt=entry.attempt, alone=False)
    anew.moved_from = moved_from
    return anew


def naming_move(choice: Choice | None, moved_from: InstanceId | None) -> Choice | None:
    """Return a choice whose reason says whether the request has moved."""
    if choice is None or moved_from in (None, choice.instance):
        return choice
    return replace(choice, reason=f"moved from instance {moved_from}; {choice.reason}")
