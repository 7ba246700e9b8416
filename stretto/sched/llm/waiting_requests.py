"""The requests of an LLM engine that wait, in all places where they may: held for room, in the queue, or in
the queues of instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from itertools import chain

from stretto.cluster.messages import InstanceId
from stretto.model.replica import Replica
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.placing import Placing
from stretto.sched.llm.room_gate import RoomGate
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry


class WaitingRequests:
    """What waits at an LLM engine: whoever withdraws a request need not know where it is.

    Args:
        on_queued: is called with the query of each request that enters the queue.
    """

    def __init__(
        self, gate: RoomGate, queue: EngineQueue, placing: Placing, on_queued: Callable[[str], None]
    ) -> None:
        self._gate = gate
        self._queue = queue
        self._placing = placing
        self._on_queued = on_queued

    def __bool__(self) -> bool:
        return bool(self._queue or self._placing.bound() or self._gate)

    def __len__(self) -> int:
        num_queued = sum(entry.hi - entry.lo for entry in self._queue)
        return num_queued + len(self._placing.bound()) + len(self._gate)

    def join(self, instance: InstanceId, replica: Replica) -> None:
        """Let requests go to an instance, which serves now."""
        self._placing.join(instance)
        self._gate.join(instance, replica)

    def suspend(self, instance: InstanceId) -> None:
        """Let nothing wait for an instance that may be down."""
        self._placing.leave(instance)
        self._gate.suspend(instance)

    def leave(self, instance: InstanceId) -> None:
        """Let nothing wait for an instance that takes no more work."""
        self._placing.leave(instance)
        self._gate.leave(instance)

    def arrive(self, entry: QueueEntry) -> None:
        """Queue an entry that arrives or is tried again, or hold it where its program has no room."""
        for one in self._gate.arrive(entry):
            self._put(one)

    def release(self) -> None:
        """Queue what was held and has room now."""
        for entry in self._gate.released():
            self._put(entry)

    def withdraw(self, query: str, node: int, items: Set[int] | None) -> int:
        """Drop what waits of a node of a query, or of some of its items; return the number of items."""
        places = (self._queue, self._placing, self._gate)
        return sum(place.withdraw(query, node, items) for place in places)

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Move what waits of a query to its new places, as nodes are needed more or less urgently now."""
        self._queue.ask(query, demands)
        self._placing.ask(query, demands)
        self._gate.ask(query, demands)

    def queries(self) -> list[str]:
        """Return the queries that have something waiting."""
        waiting = chain(self._queue, self._placing.bound(), self._gate.entries())
        return list(dict.fromkeys(entry.query for entry in waiting))

    def end_query(self, query: str) -> None:
        """Drop all that waits of a query that has ended."""
        self._queue.end_query(query)
        self._placing.end_query(query)
        self._gate.end_query(query)

    def clear(self) -> None:
        """Drop all that waits."""
        self._queue.clear()
        self._placing.clear()
        self._gate.clear()

    def check_invariants(self) -> None:
        """Check each place. For tests."""
        assert all(entry.lo < entry.hi for entry in self._queue)
        self._placing.check_invariants()
        self._gate.check_invariants()

    def _put(self, entry: QueueEntry) -> None:
        self._queue.add(entry)
        self._on_queued(entry.query)
