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


class InstanceTable:
    """The views of an engine's instances, by id and sorted by load.

    Args:
        load: function that gives the load of an instance, as the placement policy measures it.
    """

    def __init__(self, load: Callable[[InstanceView], Load]) -> None:
        self._load = load
        self._views: dict[InstanceId, InstanceView] = {}
        self._order = LoadOrder()
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
        self._suspects.pop(instance, None)

    def changed(self, instance: InstanceId) -> None:
        """Sort an instance again after its view has changed."""
        view = self._views[instance]
        if view.state == "serving":
            self._order.update(instance, view.profile, view.room_tokens, self._load(view))
        else:
            self._order.remove(instance)
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
        if found:
            return found
        suspects = [self._views[instance] for instance in self._suspects]
        return [v for v in suspects if v.num_running == 0 and v.probe_s <= now_s and v.room_tokens >= room]
