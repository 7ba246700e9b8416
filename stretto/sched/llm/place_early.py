"""Early binding: a request gets an instance when it comes, waits in its instance's own queue, and may move.

The engine's queue then holds what no instance serves, and what has just come: `place` binds it, in order, at
once. What waits for an instance that does not serve any more goes back to the engine's queue. About others
that wait, `Moves` asks the policy again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import replace

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.bound_requests import BoundRequests, anew, naming_move
from stretto.sched.llm.loads import InstanceLoads
from stretto.sched.llm.moves import Moves
from stretto.sched.llm.placing import Placed, PlacementRequests
from stretto.sched.llm.shown_parts import ShownParts
from stretto.sched.orders.order import Hold
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry


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
        describe: PlacementRequests,
        *,
        new_queue: Callable[[], EngineQueue],
        moves: bool,
    ) -> None:
        self.not_before_s: float | None = None
        self._queue = queue
        self._loads = loads
        self._shown = shown
        self._describe = describe
        self._bound = BoundRequests(new_queue, loads)
        self._moves = Moves(loads, self._bound, describe) if moves else None
        self._going_out: QueueEntry | None = None
        self._yields_s: dict[InstanceId, float] = {}

    def place(self, now_s: float) -> Iterator[Placed]:
        """Assign new requests to instances, move some that wait, and yield the requests that are to be sent
        to instances now, in order, until nothing more fits.

        The caller must take each from its queue and count it as running before it asks for the next.
        """
        self.not_before_s = None
        for instance in [i for i, until_s in self._yields_s.items() if until_s <= now_s]:
            self._bound.to_admit[instance] = None
        yield from self._bind_new(now_s)
        yield from self._admit(now_s)
        if self._moves is not None:
            self._moves.ask(now_s)
            yield from self._admit(now_s)
            if (look_s := self._moves.look_s(now_s)) is not None:
                self.not_before_s = min(look_s, self.not_before_s or look_s)
        if self._yields_s:
            self.not_before_s = min(*self._yields_s.values(), self.not_before_s or math.inf)

    def join(self, instance: InstanceId) -> None:
        """Begin to send requests to an instance, which serves now; waiting requests may move to it."""
        if self._moves is not None:
            self._moves.freed[instance] = None

    def leave(self, instance: InstanceId) -> None:
        """Send no more requests to an instance. Those that wait for it go back to the engine's queue."""
        if self._moves is not None:
            self._moves.leave(instance)
        self._bound.to_admit.pop(instance, None)
        self._yields_s.pop(instance, None)
        for entry in self._bound.leave(instance):
            try:
                self._queue.add(anew(entry, entry.lo, moved_from=instance))
            except Exception as bug:  # of the order; the others are to be queued all the same
                self._loads.policy.note_bug(bug)

    def freed(self, instance: InstanceId) -> None:
        """Note that a request has left an instance, so that the next `place` looks there for room."""
        if self._loads.table.get(instance) is not None:
            self._bound.to_admit[instance] = None
            self.join(instance)

    def end_query(self, query: str) -> None:
        """Drop the requests of a query that wait in the queues of instances."""
        for entry in self._bound.of_query(query):
            self._bound.remove(entry)

    def withdraw(self, query: str, node: int, items: Set[int] | None = None) -> int:
        """Drop the requests of one node of a query, or of some of its items only, that
        wait in the queues of instances. Return their number.
        """
        of_node = self._bound.of_node(query, node)
        dropped = [entry for entry in of_node if items is None or entry.lo in items]
        for entry in dropped:
            self._bound.remove(entry)
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
                    again = anew(entry, entry.lo)
                    bound = self._bound.remove(entry)
                    request, purpose = bound.request, self._describe.purpose(again)
                    if purpose.preference != request.purpose.preference and self._moves is not None:
                        self._queue.add(again)
                        continue
                    if purpose != request.purpose:
                        request = replace(request, purpose=purpose)
                    self._bound.add(again, request, bound.choice, bound.at_s)

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
            in_order = [entry for entry in self._queue if entry not in self._queue.aside]
            assert self._loads.eligible.idle_host_of_all(in_order) is None
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
            choice = naming_move(self._loads.choice.choose(request, now_s, entry), entry.moved_from)
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
            self._bound.add(anew(chosen.entry, chosen.entry.lo), request, choice, now_s)
            item = self._queue.take(chosen.entry, 1)
            self._queue.started(chosen.entry, item, item + 1)

    def _admit(self, now_s: float) -> Iterator[Placed]:
        """Yield what has room at its instance, instance by instance."""
        held: list[InstanceId] = []
        while self._bound.to_admit:
            instance = next(iter(self._bound.to_admit))
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
            del self._bound.to_admit[instance]
        self._bound.to_admit.update(dict.fromkeys(held))

    def _fits(self, entry: QueueEntry, now_s: float) -> int:
        bound = self._bound.of(entry)
        if not self._loads.choice.has_room(bound.instance, bound.request):
            return 0
        if self._loads.choice.admits(bound.instance, bound.request, now_s):
            return 1
        until_s = bound.request.purpose.yields_until_s
        if now_s < until_s < math.inf:  # it waits for a stricter class no longer than that
            self._yields_s[bound.instance] = min(until_s, self._yields_s.get(bound.instance, math.inf))
        return 0
