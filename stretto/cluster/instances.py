"""What a placement policy sees: the instances of one engine, sorted by load.

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
    """One instance.

    Attributes:
        capacity_tokens: tokens that may be in flight there.
        num_slots: requests that may run there at once.
        space: name of its tokenizer and block length; a prompt has one key per space.
        state: only "serving" and "suspect" instances get work.
        num_running: requests that run there.
        num_decoding: those of them whose prefill is over.
        running_tokens: tokens of those requests, prompts and outputs to come.
        prefill_s: predicted seconds of prefills that have not ended.
        expected_output: tokens of a typical answer.
        probe_s: when a suspect instance may take a request.
        reported: how busy it says it is, if it does.
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
        """Tokens that still fit there."""
        return max(0, self.capacity_tokens - self.running_tokens) if self.num_running < self.num_slots else 0

    @property
    def outstanding_s(self) -> float:
        """Predicted seconds by which the requests there delay one more."""
        return self.prefill_s + self.expected_output * self.profile.per_neighbour_s * self.num_running


class InstanceTable:
    """Views by id.

    Args:
        load: how loaded an instance is in the eyes of the placement policy.
    """

    def __init__(self, load: Callable[[InstanceView], Load]) -> None:
        self._load = load
        self._views: dict[InstanceId, InstanceView] = {}
        self._order = LoadOrder()
        self._suspects: dict[InstanceId, None] = {}
        self._capacities: list[int] = []

    def join(self, view: InstanceView) -> None:
        """Add an instance."""
        self._views[view.id] = view
        insort(self._capacities, view.capacity_tokens)
        self.changed(view.id)

    def leave(self, instance: InstanceId) -> None:
        """Forget an instance."""
        view = self._views.pop(instance)
        del self._capacities[bisect_left(self._capacities, view.capacity_tokens)]
        self._order.remove(instance)
        self._suspects.pop(instance, None)

    def changed(self, instance: InstanceId) -> None:
        """Sort an instance again whose view has changed."""
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
        """All views, in the order in which they joined."""
        return iter(self._views.values())

    @property
    def has_suspects(self) -> bool:
        """Whether an instance is suspect."""
        return bool(self._suspects)

    @property
    def roomiest(self) -> int:
        """The most room that a serving instance has."""
        return self._order.roomiest

    def room_for(self, num_tokens: int) -> int:
        """Return the room that a request needs.

        It is `num_tokens`, but no more than the largest instance has when idle: a request that is larger
        than every instance runs alone on the largest.
        """
        return max(1, min(num_tokens, self._capacities[-1])) if self._capacities else max(1, num_tokens)

    def has_room(self, instance: InstanceId, room: int) -> bool:
        """Return whether an instance serves and has `room`."""
        view = self._views.get(instance)
        return view is not None and view.state == "serving" and view.room_tokens >= room

    def candidates(self, room: int, now_s: float) -> list[InstanceView]:
        """Return the least loaded instance with `room` of each profile.

        Without any, return suspect instances that run nothing and may take a request, so that each gets one
        at a time, and none while another has room.
        """
        found = [self._views[instance] for instance in self._order.least_loaded(room)]
        if found:
            return found
        suspects = [self._views[instance] for instance in self._suspects]
        return [v for v in suspects if v.num_running == 0 and v.probe_s <= now_s and v.room_tokens >= room]
