"""Which instances of an LLM engine may take a request: by its size, by answers that were shown in part or
were wrong there, and by what serves.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.messages import InstanceId
from stretto.model.replica import Replica
from stretto.sched.llm.expected_outputs import ExpectedOutputs
from stretto.sched.llm.running_requests import Running
from stretto.sched.queries.request import QueueEntry


class EligibleInstances:
    """The instances in a table that queue entries may go to. An entry stands for its next item.

    Attributes:
        output_keys: key (`Replica.output_key`) that says which model and dtype each instance runs: instances
            with equal keys can continue each other's answers.
    """

    def __init__(self, table: InstanceTable, outputs: ExpectedOutputs, *, binds_early: bool) -> None:
        self.output_keys: dict[InstanceId, object] = {}
        self._table = table
        self._outputs = outputs
        self._binds_early = binds_early
        self._slots: dict[InstanceId, int] = {}

    def join(self, instance: InstanceId, replica: Replica, slot: int) -> None:
        """Add an instance that is in the table. `slot` is its slot in the fleet."""
        self.output_keys[instance] = replica.output_key
        self._slots[instance] = slot

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance that leaves the table."""
        del self.output_keys[instance], self._slots[instance]

    @property
    def only_suspects(self) -> bool:
        """Whether instances may be tried with a request, as none serves and some are suspect."""
        return self._table.has_suspects and not self._table.has_hosts

    def tokens_of(self, entry: QueueEntry) -> int:
        """Return how many tokens an entry takes, with its expected answer."""
        return entry.num_units(entry.lo, entry.lo + 1) + self._outputs.expected(entry.request)

    def allowed(self, entry: QueueEntry, num_tokens: int) -> Collection[InstanceView] | None:
        """Return the instances that may get an entry of `num_tokens` tokens: those that may continue its
        answer and have not answered it wrongly, without those where it has failed if another one serves. None
        stands for all.
        """
        avoids = entry.avoids
        if entry.room_at is not None:
            view = self._table.get(entry.room_at)
            may_run = view is not None and view.state == "serving" and self._may_answer(entry, view)
            if view is not None and may_run and self._slots[view.id] not in avoids:
                return [view]
        if entry.like is None and not avoids:
            return None
        views = [view for view in self._table if self._may_answer(entry, view)]
        others = [view for view in views if self._slots[view.id] not in avoids]
        room = min(num_tokens, max((view.capacity_tokens for view in views), default=0))
        has_host = any(view.state == "serving" and view.capacity_tokens >= room for view in others)
        return others if has_host else views

    def roomiest_offline(
        self, num_tokens: int, allowed: Collection[InstanceView] | None
    ) -> InstanceView | None:
        """Return the instance with the most room for an offline request of `num_tokens` tokens, among those
        allowed or, with None, all; None if it fits nowhere now. What is larger than an instance fits when
        that is empty.
        """
        views = self._table if allowed is None else allowed
        view = max(views, key=lambda one: one.offline_room_tokens, default=None)
        if view is None or view.offline_room_tokens < max(1, min(num_tokens, view.capacity_tokens)):
            return None
        return view

    def may_bind(self, entry: QueueEntry) -> bool:
        """Return whether an entry may be assigned to an instance now. What is offline may if there is room
        for it.
        """
        if entry.demand.criteria != "offline":
            return True
        num_tokens = self.tokens_of(entry)
        return self.roomiest_offline(num_tokens, self.allowed(entry, num_tokens)) is not None

    def has_host(self, entry: QueueEntry) -> bool:
        """Return whether an instance serves that could run an entry if it were idle; or none serves at all,
        so that suspect ones may be tried with it.
        """
        may_be_all = entry.like is None and not entry.wrong_at
        if may_be_all and not (self._table.has_suspects and self._table.has_hosts):
            return True
        if may_be_all:
            return bool(self._table.all_hosts(self._table.room_for(self.tokens_of(entry))))
        others = [view for view in self._table if self._may_answer(entry, view)]
        return bool(others) and (not self._table.has_hosts or any(view.state == "serving" for view in others))

    def has_untried(self, running: Running, tried: Set[int]) -> bool:
        """Return whether an instance could answer a request which was answered wrongly in the slots `tried`:
        one that serves, or that is suspect and may serve again.
        """
        entry, item = running.entry, running.item
        room = self._table.room_for(entry.num_units(item, item + 1) + self._outputs.expected(entry.request))
        like = running.output_key if running.offset and entry.request.shows else entry.like
        return any(
            self._slots[view.id] not in tried and like in (None, self.output_keys[view.id])
            for view in self._table
            if view.capacity_tokens >= room
        )

    def may_hold_up(self, entry: QueueEntry) -> bool:
        """Return whether an entry may keep others waiting until it has room. One that may not go everywhere
        may not, as others could go where it may not.
        """
        may_go_everywhere = entry.like is None and not entry.avoids
        if may_go_everywhere or self._binds_early or not self._table.has_hosts:
            return True
        room = self.tokens_of(entry)
        allowed = self.allowed(entry, room)
        assert allowed is not None
        return any(
            view.state == "serving" and view.room_tokens >= max(1, min(room, view.capacity_tokens))
            for view in allowed
        )

    def has_others(self, instance: InstanceId, like: object) -> bool:
        """Return whether another instance than this serves, among those of the model and dtype `like`; None
        stands for all.
        """
        if len(self._table) == 1 and self._table.get(instance) is not None:
            return False
        return any(
            view.state == "serving" and view.id != instance and like in (None, self.output_keys[view.id])
            for view in self._table
        )

    def idle_host_of_all(self, entries: Collection[QueueEntry]) -> InstanceId | None:
        """Return a serving instance without any work at which each of some entries may run; None if there is
        none, or no entry. For tests.
        """
        for view in self._table if entries else ():
            is_idle = not (view.num_running or view.num_waiting or view.num_offline)
            if is_idle and view.state == "serving" and all(self._may_run(one, view) for one in entries):
                return view.id
        return None

    def _may_answer(self, entry: QueueEntry, view: InstanceView) -> bool:
        """Return whether an instance may continue the answer of an entry, and has not answered it wrongly."""
        is_like = entry.like in (None, self.output_keys[view.id])
        return is_like and self._slots[view.id] not in entry.wrong_at

    def _may_run(self, entry: QueueEntry, view: InstanceView) -> bool:
        num_tokens = self.tokens_of(entry)
        allowed = self.allowed(entry, num_tokens)
        is_large = view.capacity_tokens < self._table.room_for(num_tokens)
        return not is_large and (allowed is None or view in allowed)
