"""A placement policy as an LLM engine's scheduler calls it: what it raises waits until changes are done."""

from __future__ import annotations

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.load_order import Load
from stretto.cluster.placement import Placement, PlacementEvent


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
