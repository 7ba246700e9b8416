"""Late binding: a request stays in the engine's queue until there is an instance with room for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.errors import InternalError
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.loads import InstanceLoads
from stretto.sched.llm.placing import Placed, PlacementRequests, Placing
from stretto.sched.llm.shown_parts import ShownParts
from stretto.sched.orders.order import Hold
from stretto.sched.queries.request import QueueEntry

_LOOK_S = 1.0
"""Seconds after which waiting requests are looked at again though nothing has changed but the time."""


class PlaceLate(Placing):
    """Late binding of requests to LLM instances: requests wait in the engine's queue, and each gets an
    instance only when one has room for it.

    Where all requests that were looked at were larger than any room, they are looked at again only when the
    queue has changed or a request has left an instance: until then there is only less room. They are also
    looked at after `_LOOK_S` seconds, because others may come first when they have waited longer.
    """

    def __init__(
        self, queue: EngineQueue, loads: InstanceLoads, shown: ShownParts, describe: PlacementRequests
    ) -> None:
        self.not_before_s: float | None = None
        self._queue = queue
        self._loads = loads
        self._shown = shown
        self._describe = describe
        self._had_no_room_at: int | None = None
        self._looked_s = 0.0

    def join(self, instance: InstanceId) -> None:
        """Look at the waiting requests again, as an instance serves now."""
        self._had_no_room_at = None

    def leave(self, instance: InstanceId) -> None:
        """Look at the waiting requests again, as the largest instance may be gone: a request that is larger
        than all others may be sent to a smaller one then.
        """
        self._had_no_room_at = None

    def freed(self, instance: InstanceId) -> None:
        """Look at the waiting requests again, as a request has left an instance."""
        self._had_no_room_at = None

    def place(self, now_s: float) -> Iterator[Placed]:
        """Yield the requests that are to be sent to instances now, in the queue's order, until nothing more
        fits.

        The caller must take each from the queue and count it as running before it asks for the next.
        """
        self.not_before_s = None
        is_known = self._had_no_room_at == self._queue.num_changes and now_s < self._looked_s + _LOOK_S
        if not self._queue or is_known:
            return
        self._had_no_room_at = None
        self._looked_s = now_s
        to_fill = self._loads.table.roomiest
        while self._queue and self._loads.choice.may_place:
            placed = self._next(to_fill, now_s)
            if placed is None:
                return
            yield placed
            to_fill = 0

    def bound(self) -> Collection[QueueEntry]:
        """Return nothing: no request is assigned to an instance before it is sent there."""
        return ()

    def check_invariants(self) -> None:
        """Check that no request waits in the queue of an instance, as all wait in the engine's queue, nor
        there while an instance is idle that could run whatever waits. For tests.
        """
        if self.not_before_s is None:
            in_order = [entry for entry in self._queue if entry not in self._queue.aside]
            assert self._loads.eligible.idle_host_of_all(in_order) is None
        assert not any(view.num_waiting for view in self._loads.table)

    def _next(self, to_fill: int, now_s: float) -> Placed | None:
        request: PlacementRequest | None = None
        choice: Choice | None = None
        is_any_small = is_asked = False

        def fits(entry: QueueEntry) -> int:
            nonlocal request, choice, is_any_small, is_asked
            is_asked = True
            if not self._shown.may_go_out(entry) or not self._loads.choice.may_fit(entry):
                return 0
            is_any_small = True
            request = self._describe(entry, now_s)
            choice = self._loads.choice.choose(request, now_s, entry)
            return int(choice is not None)

        chosen = self._queue.choose(to_fill, fits, now_s)
        while self._shown.set_aside(now_s):
            chosen = self._queue.choose(to_fill, fits, now_s)
        if isinstance(chosen, Hold):
            self.not_before_s = chosen.until_s
            return None
        if chosen is None:
            has_room = choice is not None or not is_asked
            if has_room and len(self._queue) > len(self._queue.aside):
                raise InternalError("the order takes nothing of what waits, though there is room")
            self._had_no_room_at = None if is_any_small else self._queue.num_changes
            return None
        assert request is not None
        assert choice is not None
        return Placed(self._queue, chosen.entry, request, choice)
