"""A table of the instances of one engine, sorted by load; placement policies read it to choose an instance.

A scheduler, a router or a simulator owns the table. It changes the fields of a view and then calls `changed`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stretto.cluster.load_order import Load, LoadOrder
from stretto.cluster.messages import InstanceId, InstanceLoad
from stretto.cluster.transitions import State
from stretto.model.profile import Profile


@dataclass(slots=True, eq=False)
class InstanceView:
    """The state of one instance as a placement policy (which chooses the instance of a request) sees it.

    Attributes:
        capacity_tokens: number of tokens, of prompts and expected outputs, that may be in flight there.
        num_slots: number of requests that may run there at once.
        space: name of the tokenizer and block length of its cache. A prompt has one key
            for each such name.
        state: only "serving" and "suspect" instances get work.
        num_running: number of requests that run there.
        num_decoding: number of running requests whose prefill is over.
        running_tokens: number of tokens of the running requests, prompts and expected outputs together. What
            requests of jobs share counts once where the instance reports its cache. So it does in
            `waiting_tokens`.
        repeated_tokens: number of tokens of running prompts that do not count there, because another running
            request has them too.
        prefill_s: predicted seconds of prefills that have not ended, each counted whole until its end.
        prefill_from_s: time from which the oldest of these prefills has been computed.
        expected_output: number of tokens of a typical answer.
        num_offline: number of offline requests that run there. They give way to others, so that they count
            nowhere else.
        offline_tokens: number of their tokens, prompts and expected outputs together.
        offline_beside: most of these tokens while other requests run there; the request that exceeds it is
            the last one. None if the instance itself limits what they do in a step.
        num_waiting: number of requests that wait in this instance's own queue until they fit.
        waiting_tokens: number of tokens of the waiting requests, prompts and expected outputs together.
        waiting_s: predicted seconds by which the waiting requests delay one more.
        waiting_prefill_s: predicted seconds of their prefills, which are a part of that.
        slowness: measured seconds of its last answers over predicted ones, 1 if they hardly differ. Measured
            only where the policy lets requests wait at an instance ("early").
        probe_s: time from which a suspect instance may be tried with a request.
        per_resident_s: measured seconds that each token in flight adds to a step of decodes; None before
            answers have shown it.
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
    repeated_tokens: int = 0
    prefill_s: float = 0.0
    prefill_from_s: float = 0.0
    expected_output: int = 0
    num_offline: int = 0
    offline_tokens: int = 0
    offline_beside: int | None = None
    num_waiting: int = 0
    waiting_tokens: int = 0
    waiting_s: float = 0.0
    waiting_prefill_s: float = 0.0
    slowness: float = 1.0
    probe_s: float = 0.0
    per_resident_s: float | None = None
    reported: InstanceLoad | None = None

    @property
    def room_tokens(self) -> int:
        """Number of tokens that still fit on the instance; 0 when it runs as many requests as it may
        (`num_slots`).
        """
        room = self.capacity_tokens - self.running_tokens
        return room if room > 0 and self.num_running < self.num_slots else 0

    @property
    def offline_room_tokens(self) -> int:
        """Number of tokens of offline requests that still fit on the instance beside all that runs or waits
        there; 0 when there are as many requests as it may run, or it is perhaps down.
        """
        has_others = self.num_running > 0 or self.num_waiting > 0
        if has_others and self.offline_beside is not None and self.offline_tokens >= self.offline_beside:
            return 0
        num_requests = self.num_running + self.num_offline + self.num_waiting
        room = self.capacity_tokens - self.running_tokens - self.offline_tokens - self.waiting_tokens
        return room if room > 0 and num_requests < self.num_slots and self.state == "serving" else 0

    def prefill_left_s(self, now_s: float) -> float:
        """Return the predicted seconds of prefills that have not ended, without what is computed by now.

        Prefills are computed one after the other. The oldest is taken to be of mean length.
        """
        num_prefills = self.num_running - self.num_decoding
        if num_prefills < 1:
            return self.prefill_s
        return self.prefill_s - min(max(0.0, now_s - self.prefill_from_s), self.prefill_s / num_prefills)

    @property
    def outstanding_s(self) -> float:
        """Predicted seconds by which the requests that run at the instance delay one more request."""
        return self.prefill_s + self.expected_output * self.profile.per_neighbour_s * self.num_running

    @property
    def turn_s(self) -> float:
        """Predicted seconds until one of the requests that run at the instance ends and makes room; 0 if none
        runs.
        """
        if not self.num_running:
            return 0.0
        return self.expected_output * self.profile.decode_s(self.num_running) / self.num_running

    @property
    def backlog_s(self) -> float:
        """Predicted seconds by which the requests that run or wait at the instance delay one more request.

        Includes the wait until the tokens of that request fit, and the measured slowness of the instance.
        """
        turn_s = 0.0 if self.room_tokens else self.turn_s
        return self.slowness * (self.outstanding_s + self.waiting_s + turn_s)


class InstanceTable:
    """The instances of one engine as placement policies see them, by id and
    sorted by load, so that the least loaded one is found fast.

    Args:
        load: function that gives the load of an instance, as the placement policy measures it.
        with_full: whether `hosts`, which finds full instances too, is going to be called.
    """

    def __init__(self, load: Callable[[InstanceView], Load], *, with_full: bool = False) -> None:
        self._load = load
        self._views: dict[InstanceId, InstanceView] = {}
        self._order = LoadOrder()
        self._hosts = LoadOrder() if with_full else None
        self._moved: dict[InstanceId, None] = {}
        self._suspects: dict[InstanceId, None] = {}
        self._not_serving: set[InstanceId] = set()
        self._serving: list[InstanceView] | None = None
        self._groups: dict[Profile, int] = {}
        self._group_of: dict[InstanceId, tuple[Profile, int]] = {}
        self._capacities: list[int] = []

    def join(self, view: InstanceView) -> None:
        """Add an instance to the table, which is sorted by load, so that placement policies (which choose
        instances) may choose it.
        """
        self._views[view.id] = view
        self._serving = None
        insort(self._capacities, view.capacity_tokens)
        self.changed(view.id)

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance from the table, so that placement policies no longer choose it."""
        view = self._views.pop(instance)
        del self._capacities[bisect_left(self._capacities, view.capacity_tokens)]
        self._order.remove(instance)
        if self._hosts is not None:
            self._hosts.remove(instance)
        self._moved.pop(instance, None)
        self._suspects.pop(instance, None)
        self._not_serving.discard(instance)
        self._serving = None
        self._group_of.pop(instance, None)

    def changed(self, instance: InstanceId) -> None:
        """Note that the fields of an instance's view have changed.

        The instance is moved to its new place in the table, which is sorted by load, at the next look-up.
        """
        self._moved[instance] = None
        state = self._views[instance].state
        if state == "serving":
            if instance in self._not_serving:
                self._not_serving.discard(instance)
                self._suspects.pop(instance, None)
                self._serving = None
            return
        self._not_serving.add(instance)
        self._serving = None
        if state == "suspect":
            self._suspects[instance] = None
        else:
            self._suspects.pop(instance, None)

    def get(self, instance: InstanceId) -> InstanceView | None:
        """Return the `InstanceView` (state and load) of an instance; None if the table does not have it."""
        return self._views.get(instance)

    def __len__(self) -> int:
        """Return the number of instances."""
        return len(self._views)

    def __iter__(self) -> Iterator[InstanceView]:
        """Iterate over all views, in the order in which they joined."""
        return iter(self._views.values())

    @property
    def has_suspects(self) -> bool:
        """Whether some instance is suspect: it may be down, and gets one request at a time."""
        return bool(self._suspects)

    @property
    def roomiest(self) -> int:
        """The largest number of tokens that still fit on one serving instance; 0 without one."""
        if self._moved:
            self._sort()
        return self._order.roomiest

    @property
    def has_hosts(self) -> bool:
        """Whether some instance is up, even if it has no room now."""
        return any(view.state == "serving" for view in self._views.values())

    def room_for(self, num_tokens: int) -> int:
        """Return how many tokens must be free on an instance for it to take a request of `num_tokens` tokens.

        It is `num_tokens`, but no more than the largest instance has when idle: a request that is larger than
        every instance runs alone on the largest.
        """
        if self._capacities and num_tokens > self._capacities[-1]:
            num_tokens = self._capacities[-1]
        return num_tokens if num_tokens > 1 else 1

    def has_room(self, instance: InstanceId, room: int) -> bool:
        """Return whether an instance serves and `room` more tokens fit there now."""
        view = self._views.get(instance)
        return view is not None and view.state == "serving" and view.room_tokens >= room

    def candidates(self, room: int, now_s: float) -> list[InstanceView]:
        """Return the least loaded instances on which `room` more tokens fit now: one for each cost profile
        (predicted speed) that instances have.

        If there is none, and no serving instance could run the request even if it were idle, return the
        suspect instances that run nothing and may be tried now. So each suspect gets one
        request at a time, and none that a serving instance may take, now or later.
        """
        if self._moved:
            self._sort()
        found = [self._views[instance] for instance in self._order.least_loaded(room)]
        return found or self._to_probe(room, now_s)

    def can_host(self, instance: InstanceId, room: int) -> bool:
        """Return whether an instance serves and could run a request of `room` tokens if it were idle.

        It is for placement policies (rules that choose instances) of users; those that come with Stretto ask
        `hosts`.
        """
        view = self._views.get(instance)
        return view is not None and view.state == "serving" and view.capacity_tokens >= room

    def all_hosts(self, room: int) -> Sequence[InstanceView]:
        """Return all instances that serve and could run a request of `room` tokens if they were idle."""
        if self._serving is None:
            self._serving = [view for view in self._views.values() if view.state == "serving"]
        if not self._capacities or room <= self._capacities[0]:
            return self._serving
        return [view for view in self._serving if view.capacity_tokens >= room]

    def hosts(self, room: int, now_s: float) -> list[InstanceView]:
        """Return the least loaded instances that could run a request of `room` tokens if they were idle: one
        for each cost profile (predicted speed) that instances have.

        They may be full now: this is for policies that let a request wait at an instance and count the
        waiting as part of the price. If there is none, return suspect instances as
        `candidates` does.
        """
        assert self._hosts is not None, "the table was made without full instances"
        if self._moved:
            self._sort()
        found = [self._views[instance] for instance in self._hosts.least_loaded(room)]
        return found or self._to_probe(room, now_s)

    def _sort(self) -> None:
        """Move the instances whose views have changed to their new places in the orders."""
        for instance in self._moved:
            view = self._views[instance]
            if view.state == "serving":
                load, group = self._load(view), self._group(view)
                self._order.update(instance, group, view.room_tokens, load)
                if self._hosts is not None:
                    self._hosts.update(instance, group, view.capacity_tokens, load)
            else:
                self._order.remove(instance)
                if self._hosts is not None:
                    self._hosts.remove(instance)
        self._moved.clear()

    def _group(self, view: InstanceView) -> int:
        """Return the number of the group of instances with a view's profile, whose hash takes long."""
        known = self._group_of.get(view.id)
        if known is None or known[0] is not view.profile:
            number = self._groups.setdefault(view.profile, len(self._groups))
            known = self._group_of[view.id] = view.profile, number
        return known[1]

    def _to_probe(self, room: int, now_s: float) -> list[InstanceView]:
        if not self._suspects or self.all_hosts(room):
            return []
        suspects = [self._views[instance] for instance in self._suspects]
        return [v for v in suspects if v.num_running == 0 and v.probe_s <= now_s and v.room_tokens >= room]
