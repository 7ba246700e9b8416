"""A table of the instances of one engine, sorted by load; placement policies read it.

A scheduler, a router or a simulator owns the table. It changes the fields of a view and then calls `changed`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stretto.cluster.load_order import Load, LoadOrder
from stretto.cluster.messages import InstanceId, InstanceLoad
from stretto.cluster.transitions import State
from stretto.costs.profile import Profile


@dataclass(slots=True, eq=False)
class InstanceView:
    """The state of one instance as a placement policy sees it.

    Attributes:
        capacity_tokens: tokens that may be in flight there.
        num_slots: requests that may run there at once.
        space: name of its tokenizer and block length; a prompt has one key per space.
        state: only "serving" and "suspect" instances get work.
        num_running: requests that run there.
        num_decoding: running requests whose prefill is over.
        running_tokens: tokens of those requests, prompts and outputs to come.
        prefill_s: predicted seconds of prefills that have not ended.
        expected_output: tokens of a typical answer.
        num_waiting: requests that are bound to it and wait for room there.
        waiting_tokens: tokens of those requests, prompts and outputs to come.
        waiting_s: predicted seconds by which those requests delay one more.
        slowness: measured seconds of its last answers over predicted ones, 1 if they hardly differ. Noted
            only where requests are bound early.
        probe_s: when a suspect instance may take a request.
        reported: load that the instance itself reports, if it does.
    """

    id: InstanceId
    profile: Profile
    capacity_tokens: int
    num_slots: int = 16
    space: str = ""
    state: State = "serving"
    num_running: int = 0
    num_decoding: int = 0
    running_tokens: int = 0
    prefill_s: float = 0.0
    expected_output: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    waiting_s: float = 0.0
    slowness: float = 1.0
    probe_s: float = 0.0
    reported: InstanceLoad | None = None

    @property
    def room_tokens(self) -> int:
        """Number of tokens that the instance can still take; 0 when all its slots are taken."""
        return max(0, self.capacity_tokens - self.running_tokens) if self.num_running < self.num_slots else 0

    @property
    def outstanding_s(self) -> float:
        """Predicted seconds by which the requests at the instance delay one more."""
        return self.prefill_s + self.expected_output * self.profile.per_neighbour_s * self.num_running

    @property
    def turn_s(self) -> float:
        """Predicted seconds until one of the requests that run there has ended."""
        if not self.num_running:
            return 0.0
        return self.expected_output * self.profile.decode_s(self.num_running) / self.num_running

    @property
    def backlog_s(self) -> float:
        """Predicted seconds by which the requests that run or wait there delay one more.

        For placement policies of users; those that come with Stretto go by other sums.
        """
        turn_s = 0.0 if self.room_tokens else self.turn_s
        return self.slowness * (self.outstanding_s + self.waiting_s + turn_s)


class InstanceTable:
    """The views of an engine's instances, by id and sorted by load.

    Args:
        load: function that gives the load of an instance, as the placement policy measures it.
        with_full: whether `hosts` is going to be asked for full instances too.
    """

    def __init__(self, load: Callable[[InstanceView], Load], *, with_full: bool = False) -> None:
        self._load = load
        self._views: dict[InstanceId, InstanceView] = {}
        self._order = LoadOrder()
        self._hosts = LoadOrder() if with_full else None
        self._suspects: dict[InstanceId, None] = {}
        self._capacities: list[int] = []

    def join(self, view: InstanceView) -> None:
        """Add an instance to the table."""
        self._views[view.id] = view
        insort(self._capacities, view.capacity_tokens)
        self.changed(view.id)

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance from the table."""
        view = self._views.pop(instance)
        del self._capacities[bisect_left(self._capacities, view.capacity_tokens)]
        self._order.remove(instance)
        if self._hosts is not None:
            self._hosts.remove(instance)
        self._suspects.pop(instance, None)

    def changed(self, instance: InstanceId) -> None:
        """Sort an instance again after its view has changed."""
        view = self._views[instance]
        if view.state == "serving":
            load = self._load(view)
            self._order.update(instance, view.profile, view.room_tokens, load)
            if self._hosts is not None:
                self._hosts.update(instance, view.profile, view.capacity_tokens, load)
        else:
            self._order.remove(instance)
            if self._hosts is not None:
                self._hosts.remove(instance)
        if view.state == "suspect":
            self._suspects[instance] = None
        else:
            self._suspects.pop(instance, None)

    def get(self, instance: InstanceId) -> InstanceView | None:
        """Return the view of an instance, None if it is unknown."""
        return self._views.get(instance)

    def __iter__(self) -> Iterator[InstanceView]:
        """Iterate over all views, in the order in which they joined."""
        return iter(self._views.values())

    @property
    def has_suspects(self) -> bool:
        """Whether an instance is suspect."""
        return bool(self._suspects)

    @property
    def roomiest(self) -> int:
        """The largest room, in tokens, that a serving instance has."""
        return self._order.roomiest

    @property
    def has_hosts(self) -> bool:
        """Whether an instance serves, full or not. Known only `with_full`."""
        return self._hosts is not None and self._hosts.roomiest > 0

    def room_for(self, num_tokens: int) -> int:
        """Return the room, in tokens, that an instance must have to take a request of `num_tokens`.

        It is `num_tokens`, but no more than the largest instance has when idle: a request that is larger
        than every instance runs alone on the largest.
        """
        return max(1, min(num_tokens, self._capacities[-1])) if self._capacities else max(1, num_tokens)

    def has_room(self, instance: InstanceId, room: int) -> bool:
        """Return whether an instance serves and has room for `room` tokens."""
        view = self._views.get(instance)
        return view is not None and view.state == "serving" and view.room_tokens >= room

    def candidates(self, room: int, now_s: float) -> list[InstanceView]:
        """Return the least loaded instance with `room` tokens of room, for each profile.

        If there is none, return suspect instances that run nothing and may take a request: so each gets one
        at a time, and none while a serving instance has room.
        """
        found = [self._views[instance] for instance in self._order.least_loaded(room)]
        return found or self._to_probe(room, now_s)

    def can_host(self, instance: InstanceId, room: int) -> bool:
        """Return whether an instance serves and has `room` when it is idle.

        For placement policies of users; those that come with Stretto ask `hosts`.
        """
        view = self._views.get(instance)
        return view is not None and view.state == "serving" and view.capacity_tokens >= room

    def hosts(self, room: int, now_s: float) -> list[InstanceView]:
        """Return the least loaded instance of each profile that has `room` when it is idle.

        It may be full now: a policy that binds early counts waiting as a part of the price. Without any,
        return suspect instances as `candidates` does.
        """
        assert self._hosts is not None, "the table was made without full instances"
        found = [self._views[instance] for instance in self._hosts.least_loaded(room)]
        return found or self._to_probe(room, now_s)

    def _to_probe(self, room: int, now_s: float) -> list[InstanceView]:
        suspects = [self._views[instance] for instance in self._suspects]
        return [v for v in suspects if v.num_running == 0 and v.probe_s <= now_s and v.room_tokens >= room]
