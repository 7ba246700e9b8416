"""The choice of an instance for a request of an LLM engine, by its placement policy. It changes nothing, and
what a policy raises waits until changes are done.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest
from stretto.sched.llm.eligible import EligibleInstances
from stretto.sched.llm.shared_context import SharedContext
from stretto.sched.queries.request import QueueEntry


class PolicyCalls:
    """Calls of a placement policy. An exception that it raises when it is told of an event is kept until
    `raise_bug`, so that the counts of its caller stay right.

    Attributes:
        binds_early: whether the policy assigns requests to instances that have no room for them yet.
        bug: exception that `raise_bug` will raise; None if there is none.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.binds_early = placement.binds != "late"
        self.bug: Exception | None = None

    def tell(self, event: PlacementEvent) -> None:
        """Tell the policy of an event."""
        try:
            self.placement.observe(event)
        except Exception as bug:
            self.note_bug(bug)

    def load(self, view: InstanceView) -> Load:
        """Return the load of an instance, by which the policy sorts instances."""
        try:
            return self.placement.load(view)
        except Exception as bug:
            self.note_bug(bug)
            return ()

    def note_bug(self, bug: Exception) -> None:
        """Keep an exception, to be raised by `raise_bug` when the caller has finished its changes. Only the
        first is kept.
        """
        self.bug = self.bug or bug

    def raise_bug(self) -> None:
        """Raise the exception that was kept since the last call; nothing happens if there was none."""
        bug, self.bug = self.bug, None
        if bug is not None:
            raise bug


class InstanceChoice:
    """Chooses instances for requests, and tells whether there is room for them.

    Args:
        running: what requests that run at an instance have in common.
        context: what all requests at an instance have in common, those in its queue included.
    """

    def __init__(
        self,
        table: InstanceTable,
        policy: PolicyCalls,
        eligible: EligibleInstances,
        running: SharedContext,
        context: SharedContext,
    ) -> None:
        self._table = table
        self._policy = policy
        self._eligible = eligible
        self._running = running
        self._context = context

    @property
    def may_place(self) -> bool:
        """Whether some instance could be sent a request now: one that serves and is not full, or one that is
        suspect (perhaps down, but it may be tried with a request while no other serves).
        """
        return self._table.roomiest > 0 or self._eligible.only_suspects

    def may_fit(self, entry: QueueEntry) -> bool:
        """Return whether there could be room for the next item of a queue entry on some
        instance now. It answers without asking the placement policy.
        """
        if entry.demand.criteria == "offline":
            return self._eligible.may_bind(entry)
        num_tokens = self._eligible.tokens_of(entry)
        if self._table.roomiest >= self._table.room_for(num_tokens) or self._eligible.only_suspects:
            return True
        return bool(entry.demand.job and self._running)

    @property
    def may_bind(self) -> bool:
        """Whether some instance could be assigned a request now, to wait in its queue: one that serves, full
        or not, or one that is suspect (perhaps down, but it may be tried with a request).
        """
        return self._table.has_hosts or self._table.has_suspects

    def choose(self, request: PlacementRequest, now_s: float, entry: QueueEntry) -> Choice | None:
        """Return which instance the placement policy chooses for a request, the next item of a queue entry;
        None if the request has to wait.

        An answer that was shown in part may only go to an instance of the same model and dtype.
        """
        allowed = self._eligible.allowed(entry, request.all_tokens)
        if request.purpose.preference == "offline":
            view = self._eligible.roomiest_offline(request.all_tokens, allowed)
            return None if view is None else Choice(view.id, reason="most room for offline work")
        if allowed is None:
            return self._choose(request, self._table, now_s)
        table = InstanceTable(self._policy.load, with_full=self._policy.binds_early)
        for view in allowed:
            table.join(view)
        return self._choose(request, table, now_s)

    def admits(self, instance: InstanceId, request: PlacementRequest, now_s: float) -> bool:
        """Return whether the placement policy lets a request, which fits on an instance, run there beside
        the others.
        """
        view = self._table.get(instance)
        if num_shared := self._running.tokens(instance, request):
            request = replace(request, shared_tokens={instance: num_shared})
        return view is not None and self._policy.placement.admits(request, view, now_s)

    def has_room(self, instance: InstanceId, request: PlacementRequest) -> bool:
        """Return whether a request fits on an instance now.

        A request that is larger than the whole budget of the instance fits when the instance is empty.
        """
        view = self._table.get(instance)
        if view is None:
            return False
        num_shared = self._running.tokens(instance, request)
        room = min(request.all_tokens, view.capacity_tokens) - num_shared
        return self._table.has_room(instance, max(1, room))

    def _choose(self, request: PlacementRequest, table: InstanceTable, now_s: float) -> Choice | None:
        if shared_tokens := self._context.by_instance(request):
            request = replace(request, shared_tokens=shared_tokens)
        choice = self._policy.placement.choose(request, table, now_s)
        if choice is not None and table.get(choice.instance) is None:
            raise ValueError(
                f"the placement policy names instance {choice.instance!r}, which it was not offered"
            )
        return choice
