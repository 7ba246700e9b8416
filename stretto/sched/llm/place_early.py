"""Early binding: a request gets an instance when it comes, waits in its instance's own queue, and may move.

The engine's queue then holds what no instance serves, and what has just come: `place` binds it, in order, at
once. It asks the policy again about

- all that waits for an instance that does not serve any more: that goes back to the engine's queue;
- the heads of the queue of an instance that has become slower: its answers took longer than predicted, or,
  which is looked at every `_LOOK_S`, the oldest request that it runs should have ended;
- the heads of the longest queues, when an instance has room and nothing waits for it: after one of its
  requests has ended, and when it begins to serve.

The second and third ask about at most `MAX_ASKED` requests an event, so that no event costs more when more
waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import replace
from itertools import islice

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice, PlacementRequest
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.bound_requests import BoundRequest, BoundRequests
from stretto.sched.llm.loads import InstanceLoads
from stretto.sched.llm.placing import Describe, Placed
from stretto.sched.llm.shown_parts import ShownParts
from stretto.sched.orders.order import MAX_ASKED, Hold
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry

_HEADS = 8
"""How many requests of one queue are asked about, so that several queues have their turn in an event."""
_LOOK_S = 1.0
"""Seconds between two looks at the instances for which something waits."""
_SLOWER = 1.5
"""Growth of the slowness of an instance for which its queue is asked about again."""


class PlaceEarly:
    """Early binding of requests to LLM instances: each request is assigned to an instance when it comes, and
    waits in that instance's own queue.

    Args:
        queue: the engine's queue, of requests that no instance has yet.
        new_queue: function that makes the queue of an instance.
        moves: whether the policy is asked again about requests that wait, so that they may move to another
            instance.
    """

    def __init__(
        self,
        queue: EngineQueue,
        loads: InstanceLoads,
        shown: ShownParts,
        describe: Describe,
        *,
        new_queue: Callable[[], EngineQueue],
        moves: bool,
    ) -> None:
        self.not_before_s: float | None = None
        self._queue = queue
        self._loads = loads
        self._shown = shown
        self._describe = describe
        self._moves = moves
        self._bound = BoundRequests(new_queue, loads)
        self._going_out: QueueEntry | None = None
        self._to_admit: dict[InstanceId, None] = {}
        self._freed: dict[InstanceId, None] = {}
        self._asked_at: dict[InstanceId, float] = {}
        self._yields_s: dict[InstanceId, float] = {}
        self._num_asks = 0
        self._next_look_s = 0.0

    def place(self, now_s: float) -> Iterator[Placed]:
        """Assign new requests to instances, move some that wait, and yield the requests that are to be sent
        to instances now, in order, until nothing more fits.

        The caller must take each from its queue and count it as running before it asks for the next.
        """
        self.not_before_s = None
        self._num_asks = MAX_ASKED
        for instance in [i for i, until_s in self._yields_s.items() if until_s <= now_s]:
            self._to_admit[instance] = None
        yield from self._bind_new(now_s)
        yield from self._admit(now_s)
        freed, self._freed = self._freed, {}
        if self._moves:
            self._leave_slow_ones(freed, now_s)
            self._fill(freed, now_s)
            yield from self._admit(now_s)
            self._look_again(now_s)
        if self._yields_s:
            self.not_before_s = min(*self._yields_s.values(), self.not_before_s or math.inf)

    def _leave_slow_ones(self, freed: Collection[InstanceId], now_s: float) -> None:
        """Ask about the queues of instances that have become slower."""
        suspects = list(freed)
        if self._bound and now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            suspects += islice(self._bound.longest(), MAX_ASKED)
        for instance in dict.fromkeys(suspects):
            self._loads.note_overdue(instance, now_s)
            if self._has_become_slower(instance) and self._num_asks:
                self._ask_heads(instance, now_s)

    def _fill(self, freed: Collection[InstanceId], now_s: float) -> None:
        """Ask about the longest queues for each instance that has room and an empty queue."""
        for instance in freed:
            if self._could_take_more(instance):
                for source in list(islice(self._bound.longest(), self._num_asks)):
                    if self._num_asks and self._could_take_more(instance):
                        self._ask_heads(source, now_s)

    def _look_again(self, now_s: float) -> None:
        """Ask to be called again while something waits."""
        if self._bound:
            self._next_look_s = max(self._next_look_s, now_s)
            self.not_before_s = min(self._next_look_s, self.not_before_s or self._next_look_s)

    def join(self, instance: InstanceId) -> None:
        """Begin to send requests to an instance, which serves now; waiting requests may move to it."""
        self._freed[instance] = None

    def leave(self, instance: InstanceId) -> None:
        """Send no more requests to an instance. Those that wait for it go back to the engine's queue."""
        self._freed.pop(instance, None)
        self._asked_at.pop(instance, None)
        self._to_admit.pop(instance, None)
        self._yields_s.pop(instance, None)
        for entry in self._bound.leave(instance):
            try:
                self._queue.add(_anew(entry, entry.lo, moved_from=instance))
            except Exception as bug:  # of the order; the others are to be queued all the same
                self._loads.policy.note_bug(bug)

    def freed(self, instance: InstanceId) -> None:
        """Note that a request has left an instance, so that the next `place` looks there for room."""
        if self._loads.table.get(instance) is not None:
            self._freed[instance] = self._to_admit[instance] = None

    def end_query(self, query: str) -> None:
        """Drop the requests of a query that wait in the queues of instances."""
        for entry in self._bound.of_query(query):
            self._remove(entry)

    def withdraw(self, query: str, node: int, items: Set[int] | None = None) -> int:
        """Drop the requests of one node of a query, or of some of its items only, that
        wait in the queues of instances. Return their number.
        """
        of_node = self._bound.of_node(query, node)
        dropped = [entry for entry in of_node if items is None or entry.lo in items]
        for entry in dropped:
            self._remove(entry)
        return len(dropped)

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Move waiting requests of a query to their new places in the queues of instances,
        because its steps have become more or less urgent.

        Those whose class has changed get an instance anew.
        """
        for node, demand in demands.items():
            for entry in self._bound.of_node(query, node):
                if demand != entry.demand:
                    entry.demand = demand
                    again = _anew(entry, entry.lo)
                    bound = self._bound.remove(entry)
                    request, purpose = bound.request, self._describe.purpose(again)
                    if purpose.preference != request.purpose.preference and self._moves:
                        self._queue.add(again)
                        self._to_admit[bound.instance] = None
                        continue
                    if purpose != request.purpose:
                        request = replace(request, purpose=purpose)
                    self._bind(again, request, bound.choice, bound.at_s)

    def clear(self) -> None:
        """Drop all requests that wait in the queues of instances, after a bug in a queue order."""
        self._bound.clear()
        self._yields_s.clear()
        self._going_out = None

    def bound(self) -> Collection[QueueEntry]:
        """Return the queue entries that wait in the queues of instances, each with one item."""
        entries = self._bound.entries()
        return entries if self._going_out is None else (*entries, self._going_out)

    def check_invariants(self) -> None:
        """Check that the queues of instances agree with the counts that the placement policy
        sees, that no request waits without an instance while one serves that could run
        whatever waits so, nor at one that runs nothing. For tests.
        """
        self._bound.check_invariants()
        if self.not_before_s is None:
            assert self._loads.eligible.idle_host_of_all(self._queue.in_order) is None
            for view in self._loads.table:
                assert view.num_running or not view.num_waiting

    def _bind_new(self, now_s: float) -> Iterator[Placed]:
        """Bind what is in the engine's queue. Yield what goes to a suspect instance, and what is offline:
        neither waits there.
        """
        request: PlacementRequest | None = None
        choice: Choice | None = None

        def has_place(entry: QueueEntry) -> int:
            nonlocal request, choice
            if not self._shown.may_go_out(entry) or not self._loads.eligible.may_bind(entry):
                return 0
            request = self._describe(entry, now_s)
            choice = _naming(self._loads.choice.choose(request, now_s, entry), entry.moved_from)
            return int(choice is not None)

        while self._queue and self._loads.choice.may_bind:
            chosen = self._queue.choose(0, has_place, now_s)
            if self._shown.set_aside(now_s):
                continue
            if chosen is None or isinstance(chosen, Hold):
                return
            assert request is not None
            assert choice is not None
            view = self._loads.table.get(choice.instance)
            is_offline = request.purpose.preference == "offline"
            if view is not None and (view.state == "suspect" or is_offline):
                yield Placed(self._queue, chosen.entry, request, choice)
                continue
            self._bind(_anew(chosen.entry, chosen.entry.lo), request, choice, now_s)
            item = self._queue.take(chosen.entry, 1)
            self._queue.started(chosen.entry, item, item + 1)

    def _bind(self, entry: QueueEntry, request: PlacementRequest, choice: Choice, now_s: float) -> None:
        self._bound.add(entry, request, choice, now_s)
        self._to_admit[choice.instance] = None

    def _admit(self, now_s: float) -> Iterator[Placed]:
        """Yield what has room at its instance, instance by instance."""
        held: list[InstanceId] = []
        while self._to_admit:
            instance = next(iter(self._to_admit))
            self._yields_s.pop(instance, None)
            queue, view = self._bound.queue(instance), self._loads.table.get(instance)
            to_fill = 0 if view is None else view.room_tokens
            while queue:
                chosen = queue.choose(to_fill, lambda entry: self._fits(entry, now_s), now_s)
                if isinstance(chosen, Hold):
                    held.append(instance)
                    self.not_before_s = min(chosen.until_s, self.not_before_s or chosen.until_s)
                if chosen is None or isinstance(chosen, Hold):
                    break
                bound = self._bound.take(chosen.entry)
                self._going_out = chosen.entry
                yield Placed(queue, chosen.entry, bound.request, bound.choice)
                self._going_out = None
                to_fill = 0
            del self._to_admit[instance]
        self._to_admit.update(dict.fromkeys(held))

    def _fits(self, entry: QueueEntry, now_s: float) -> int:
        bound = self._bound.of(entry)
        if not self._loads.choice.has_room(bound.instance, bound.request):
            return 0
        if self._loads.choice.admits(bound.instance, bound.request, now_s):
            return 1
        self._yield_until(bound, now_s)
        return 0

    def _yield_until(self, bound: BoundRequest, now_s: float) -> None:
        """Ask to be called when a request that waits for a stricter class need not wait any more."""
        until_s = bound.request.purpose.yields_until_s
        if now_s < until_s < math.inf:
            self._yields_s[bound.instance] = min(until_s, self._yields_s.get(bound.instance, math.inf))

    def _remove(self, entry: QueueEntry) -> None:
        """Take an entry out; what it kept waiting may go out now."""
        self._to_admit[self._bound.remove(entry).instance] = None

    # --- moves

    def _ask_heads(self, source: InstanceId, now_s: float) -> None:
        """Ask the policy again about the heads of a queue, and move those that it places elsewhere."""
        ahead_s = 0.0
        for entry in self._bound.queue(source).heads(min(_HEADS, self._num_asks), now_s):
            self._num_asks -= 1
            request = self._describe(entry, now_s, source, ahead_s)
            choice = _naming(self._loads.choice.choose(request, now_s, entry), source)
            if choice is None or choice.instance == source:
                ahead_s += self._bound.of(entry).share_s
                continue
            moved = _anew(entry, entry.lo)
            self._bind(moved, request, choice, now_s)
            self._remove(entry)

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


def _anew(entry: QueueEntry, item: int, moved_from: InstanceId | None = None) -> QueueEntry:
    """Return one item of an entry as an entry that has waited as long, for another queue."""
    anew = entry.again(item, item + 1, attempt=entry.attempt, alone=False)
    anew.moved_from = moved_from
    return anew


def _naming(choice: Choice | None, moved_from: InstanceId | None) -> Choice | None:
    """Return a choice whose reason says whether the request has moved."""
    if choice is None or moved_from in (None, choice.instance):
        return choice
    return replace(choice, reason=f"moved from instance {moved_from}; {choice.reason}")
