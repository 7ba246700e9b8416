"""The offline requests at workers: where one may begin, and which have to leave.

They give way to all others, so that neither these nor the placement policy see them in the table of workers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.kept_free import KeptFree, RoomPerInstance
from stretto.cluster.offline_room import SHARE, OfflineRoom
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.profile import Profile
from stretto.router.messages import Ticket, WorkerId

_REASON = "most room for offline work"
_MOST_ENDED = 256
"""Requests that have ended from which is learned when offline work comes. Where as many run at once, their
mean number is too low at first, until `KeptFree` has followed them for some seconds."""


@dataclass(frozen=True, slots=True)
class OfflineRules:
    """What decides how much offline work runs at workers.

    Attributes:
        new_room: returns the room of a worker with a profile.
        kept_free: returns what says how many workers others use.
    """

    new_room: Callable[[Profile], OfflineRoom] = OfflineRoom
    kept_free: Callable[[], KeptFree] = KeptFree


USUAL_RULES = OfflineRules()


_Sent: TypeAlias = tuple[float, Ticket, PlacementRequest, Choice]
"""A request that was sent: when, its number, and where it went."""
_Ended: TypeAlias = tuple[float, Ticket, int, int, Choice, int | None, float]
"""A request that has ended: when it was sent, its number, the tokens of its prompt and those that it was
expected to generate, where it went, the tokens of its answer, and when it ended. Its keys may be large: they
are not kept."""


class OfflineAtWorkers:
    """The rooms for offline requests at the workers of a table.

    Attributes:
        num_running: number of offline requests that run there.
    """

    def __init__(self, table: InstanceTable, rules: OfflineRules) -> None:
        self._table = table
        self._new_room = rules.new_room
        self._rooms: dict[WorkerId, OfflineRoom] = {}
        self._kept_free = rules.kept_free()
        self.num_running = 0

    def join(self, view: InstanceView) -> None:
        """Add a worker."""
        self._rooms.setdefault(view.id, self._new_room(view.profile))

    def leave(self, worker: WorkerId) -> None:
        """Remove a worker."""
        if (room := self._rooms.pop(worker, None)) is not None:
            self.num_running -= room.num_offline

    def started(self, ticket: Ticket, request: PlacementRequest, choice: Choice, now_s: float) -> None:
        """Note that a request is sent to the worker that was chosen for it."""
        is_offline, view = is_offline_request(request), self._table.get(choice.instance)
        num_new, prefill_s = max(0, request.num_tokens - choice.held_tokens), 0.0
        if (room := self._rooms.get(choice.instance)) is not None:  # else it has left meanwhile
            room.started(ticket, num_new, request.expected_output, now_s, is_offline=is_offline)
            prefill_s = room.steps.per_token_s * num_new
        if not is_offline:
            self._kept_free.started(request.all_tokens, prefill_s, now_s)
        elif view is not None:
            self.num_running += 1
            view.num_offline += 1
            view.offline_tokens += request.all_tokens

    def ended(
        self,
        ticket: Ticket,
        worker: WorkerId,
        request: PlacementRequest,
        num_output: int | None,
        now_s: float,
    ) -> None:
        """Note that a request has left a worker.

        Args:
            num_output: tokens of its whole answer; None if its time tells nothing.
        """
        if not is_offline_request(request):
            self._kept_free.ended(request.all_tokens, now_s)
        if (room := self._rooms.get(worker)) is None or (view := self._table.get(worker)) is None:
            return
        if room.ended(ticket, num_output, now_s) and is_offline_request(request):
            self.num_running -= 1
            view.num_offline -= 1
            view.offline_tokens -= request.all_tokens

    def choose(
        self, request: PlacementRequest, among: Collection[WorkerId] | None, now_s: float
    ) -> Choice | None:
        """Return the worker where an offline request may begin; None if it has to wait.

        While a worker may get it that is not left to others, it begins at none that is.
        """
        views = [view for view in self._table if among is None or view.id in among]
        alone = [
            view
            for view in views
            if view.state == "serving" and not self._rooms[view.id].is_left_to_others(now_s)
        ]
        free = [
            view
            for view in alone or views
            if view.offline_room_tokens >= max(1, min(request.all_tokens, view.capacity_tokens))
            and self._rooms[view.id].takes_one(now_s)
        ]
        if not free:
            return None
        best = min(free, key=lambda view: (self._rooms[view.id].has_others(now_s), view.num_offline, view.id))
        return Choice(best.id, reason=_REASON)

    def used_by_others(self, among: Collection[WorkerId] | None, now_s: float) -> Collection[WorkerId] | None:
        """Return the workers to which requests go that are not offline, of those that may get one; None
        stands for all. The others are left to offline requests.
        """
        views = [view for view in self._table if among is None or view.id in among]
        views = [view for view in views if view.state == "serving"]
        if len(views) < 2 or any(view.profile != views[0].profile for view in views):
            return None
        rooms = RoomPerInstance(
            min(view.num_slots for view in views), min(view.capacity_tokens for view in views)
        )
        num = self._kept_free.num_used(len(views), rooms, self._rooms[views[0].id].steps, now_s)
        for view in views:
            self._rooms[view.id].share = SHARE - self._kept_free.longer
        return None if num == len(views) else [view.id for view in views[:num]]

    def in_the_way(self, now_s: float) -> Sequence[Ticket]:
        """Return the offline requests that have to leave workers, because others are there or need room."""
        found: list[Ticket] = []
        for view in self._table:
            if view.num_offline:
                room = self._rooms[view.id]
                found += room.in_the_way(now_s) or room.youngest(_num_excess(view))
        return found

    def next_s(self, now_s: float) -> float:
        """Return the next time from which one more may begin at some worker; infinite if there is none."""
        times_s = (room.next_s(now_s) for room in self._rooms.values())
        return min((one_s for one_s in times_s if one_s > now_s), default=math.inf)

    def check_invariants(self) -> None:
        """Check the counts. For tests."""
        assert self.num_running == sum(view.num_offline for view in self._table)
        for view in self._table:
            self._rooms[view.id].check_invariants()
            assert view.num_offline == self._rooms[view.id].num_offline


class OfflineWhenAsked:
    """The offline requests at workers, brought up to date on other requests only when they are asked. While
    there is no offline work, nothing asks, and only the requests that run and the last ones that have ended
    are kept.

    Attributes:
        machine: what is known so far.
    """

    def __init__(self, machine: OfflineAtWorkers) -> None:
        self.machine = machine
        self._running: dict[Ticket, _Sent] = {}
        """Requests that run, and that the machine does not know."""
        self._ended: deque[_Ended] = deque(maxlen=_MOST_ENDED)

    def started(self, ticket: Ticket, request: PlacementRequest, choice: Choice, now_s: float) -> None:
        """Note that a request is sent to the worker that was chosen for it."""
        self._running[ticket] = now_s, ticket, request, choice
        if self.machine.num_running or is_offline_request(request):
            self.catch_up()

    def ended(
        self,
        ticket: Ticket,
        worker: WorkerId,
        request: PlacementRequest,
        num_output: int | None,
        now_s: float,
    ) -> None:
        """Note that a request has left a worker, as `OfflineAtWorkers.ended`."""
        if (sent := self._running.pop(ticket, None)) is None:
            self.catch_up().ended(ticket, worker, request, num_output, now_s)
        elif now_s > sent[0]:  # else its time tells nothing
            num_tokens, num_expected = request.num_tokens, request.expected_output
            self._ended.append((sent[0], ticket, num_tokens, num_expected, sent[3], num_output, now_s))

    def catch_up(self) -> OfflineAtWorkers:
        """Return the machine, after it got to know what has happened, in order."""
        if not (self._running or self._ended):
            return self.machine
        moves: list[tuple[float, bool, _Sent, int | None]] = []
        for at_s, ticket, num_tokens, num_expected, choice, num_output, ended_s in self._ended:
            sent = at_s, ticket, PlacementRequest(num_tokens, num_expected), choice
            moves += (at_s, True, sent, None), (ended_s, False, sent, num_output)
        moves += [(sent[0], True, sent, None) for sent in self._running.values()]
        self._running, self._ended = {}, deque(maxlen=_MOST_ENDED)
        for moved_s, is_start, (_, ticket, request, choice), num_output in sorted(
            moves, key=itemgetter(0, 1)
        ):
            if is_start:
                self.machine.started(ticket, request, choice, moved_s)
            else:
                self.machine.ended(ticket, choice.instance, request, num_output, moved_s)
        return self.machine


def is_offline_request(request: PlacementRequest) -> bool:
    """Return whether a request gives way to all that are not offline."""
    return request.purpose.preference == "offline"


def _num_excess(view: InstanceView) -> int:
    """Return how many offline requests have to leave because others need their places or their memory."""
    if view.running_tokens + view.offline_tokens > view.capacity_tokens:
        return max(1, view.num_running + view.num_offline - view.num_slots)
    return max(0, view.num_running + view.num_offline - view.num_slots)
