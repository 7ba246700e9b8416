"""Moves of requests that wait for an instance to another one, which has become the better choice.

The policy is asked again about

- the heads of the queue of an instance that has become slower: its answers took longer than predicted, or,
  which is looked at every `_LOOK_S`, the oldest request that it runs should have ended;
- the heads of the longest queues, when an instance has room and nothing waits for it: after one of its
  requests has ended, and when it begins to serve.

At most `MAX_ASKED` requests are asked about in an event, so that no event costs more when more waits.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from stretto.cluster.messages import InstanceId
from stretto.sched.engines.queue import heads
from stretto.sched.llm.bound_requests import BoundRequests, anew, naming_move
from stretto.sched.llm.loads import InstanceLoads
from stretto.sched.llm.placing import PlacementRequests
from stretto.sched.orders.order import MAX_ASKED

_HEADS = 8
"""How many requests of one queue are asked about, so that several queues have their turn in an event."""
_LOOK_S = 1.0
"""Seconds between two looks at the instances for which something waits."""
_SLOWER = 1.5
"""Growth of the slowness of an instance for which its queue is asked about again."""


class Moves:
    """Asks again about requests that wait, and moves them.

    Attributes:
        freed: instances that a request has left, or that have begun to serve, since it last asked.
    """

    def __init__(self, loads: InstanceLoads, bound: BoundRequests, describe: PlacementRequests) -> None:
        self.freed: dict[InstanceId, None] = {}
        self._loads = loads
        self._bound = bound
        self._describe = describe
        self._asked_at: dict[InstanceId, float] = {}
        self._num_asks = 0
        self._next_look_s = 0.0

    def leave(self, instance: InstanceId) -> None:
        """Forget an instance that gets nothing more."""
        self.freed.pop(instance, None)
        self._asked_at.pop(instance, None)

    def ask(self, now_s: float) -> None:
        """Move what waits at slow instances, and what may go to instances that have room."""
        self._num_asks = MAX_ASKED
        freed, self.freed = self.freed, {}
        self._leave_slow_ones(freed, now_s)
        self._fill(freed, now_s)

    def look_s(self, now_s: float) -> float | None:
        """Return when to ask again though nothing happens; None while nothing waits."""
        if not self._bound:
            return None
        self._next_look_s = max(self._next_look_s, now_s)
        return self._next_look_s

    def _leave_slow_ones(self, freed: Collection[InstanceId], now_s: float) -> None:
        """Ask about the queues of instances that have become slower."""
        suspects = list(freed)
        if self._bound and now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            suspects += islice(self._bound.longest(), MAX_ASKED)
        for instance in dict.fromkeys(suspects):
            self._loads.times.note_overdue(instance, self._loads.of(instance).values(), now_s)
            if self._has_become_slower(instance) and self._num_asks:
                self._ask_heads(instance, now_s)

    def _fill(self, freed: Collection[InstanceId], now_s: float) -> None:
        """Ask about the longest queues for each instance that has room and an empty queue."""
        for instance in freed:
            if self._could_take_more(instance):
                for source in list(islice(self._bound.longest(), self._num_asks)):
                    if self._num_asks and self._could_take_more(instance):
                        self._ask_heads(source, now_s)

    def _ask_heads(self, source: InstanceId, now_s: float) -> None:
        """Ask the policy again about the heads of a queue, and move those that it places elsewhere."""
        ahead_s = 0.0
        for entry in heads(self._bound.queue(source), min(_HEADS, self._num_asks), now_s):
            self._num_asks -= 1
            request = self._describe(entry, now_s, source, ahead_s)
            choice = naming_move(self._loads.choice.choose(request, now_s, entry), source)
            if choice is None or choice.instance == source:
                ahead_s += self._bound.of(entry).share_s
                continue
            moved = anew(entry, entry.lo)
            self._bound.add(moved, request, choice, now_s)
            self._bound.remove(entry)

    def _could_take_more(self, instance: InstanceId) -> bool:
        """Return whether an instance serves, has room, and nothing waits for it."""
        view = self._loads.table.get(instance)
        return view is not None and view.state == "serving" and not view.num_waiting and view.room_tokens > 0

    def _has_become_slower(self, instance: InstanceId) -> bool:
        """Return whether an instance is slower by a margin than when its queue was last asked about."""
        view = self._loads.table.get(instance)
        if view is None:
            return False
        before = min(self._asked_at.get(instance, 1.0), view.slowness)
        is_slower = view.slowness >= _SLOWER * before
        self._asked_at[instance] = view.slowness if is_slower else before
        return is_slower
