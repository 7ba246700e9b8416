"""Which devices have died, and which nodes cannot run, told by the replicas that were lost for good."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.planner.plan import PlannedReplica


class Losses:
    """What replicas that were lost for good tell.

    The devices of a lost replica are taken to be dead. If a node loses a second replica, on other devices,
    the node is taken to be at fault: it cannot run, and the devices of its lost replicas are used again.

    Attributes:
        unable: nodes that cannot run.
    """

    def __init__(self) -> None:
        self.unable: dict[str, None] = {}
        self._lost: list[PlannedReplica] = []

    @property
    def dead(self) -> frozenset[int]:
        """Numbers of the devices that are taken to be dead."""
        return frozenset(device for one in self._lost for device in one.devices)

    def lost(self, replica: PlannedReplica) -> None:
        """Note that a replica was lost and is not started again."""
        before = [one for one in self._lost if one.node == replica.node]
        if any(set(one.devices).isdisjoint(replica.devices) for one in before):
            self.unable[replica.node] = None
            self._lost = [one for one in self._lost if one.node != replica.node]
        elif replica.node not in self.unable:
            self._lost.append(replica)


def renumbered(num_devices: int, dead: frozenset[int]) -> Sequence[int]:
    """Return the devices that are left, in an order whose aligned groups are aligned on the machine too.

    A group at the end may be an exception, if several devices have lost their neighbours.
    """
    free = [device for device in range(num_devices) if device not in dead]
    order: list[int] = []
    width = 1
    while 2 * width <= num_devices:
        width *= 2
    while width:
        for at in range(0, num_devices - width + 1, width):
            group = range(at, at + width)
            if all(device in free for device in group):
                order += group
                free = [device for device in free if device not in group]
        width //= 2
    return order
