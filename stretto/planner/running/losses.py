"""Which devices have died, and which models cannot run, told by the replicas that were lost for good."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.planner.plan import PlannedReplica

_MOST_PLACES = 3


class Losses:
    """The conclusions from replicas that were lost for good.

    The devices of a lost replica are taken to be dead. But a model that never gave an answer is taken to be
    at fault if it was lost at three places without a common device, or if no device would be left: it cannot
    run, and the devices of its lost replicas are used again.

    Attributes:
        unable: models that cannot run.
    """

    def __init__(self, num_devices: int) -> None:
        self.unable: dict[str, None] = {}
        self._num_devices = num_devices
        self._lost: list[PlannedReplica] = []

    @property
    def dead(self) -> frozenset[int]:
        """Numbers of the devices that are taken to be dead."""
        return frozenset(device for one in self._lost for device in one.devices)

    def lost(self, replica: PlannedReplica, *, has_answered: bool) -> None:
        """Note that a replica was lost and is not started again.

        Args:
            has_answered: whether the model has ever given an answer.
        """
        if replica.model in self.unable:
            return
        self._lost.append(replica)
        if not has_answered and (
            self._num_places(replica.model) >= _MOST_PLACES or len(self.dead) == self._num_devices
        ):
            self.unable[replica.model] = None
            self._lost = [one for one in self._lost if one.model != replica.model]

    def _num_places(self, model: str) -> int:
        """Return how many replicas of a model without a common device were lost."""
        places: list[set[int]] = []
        for one in self._lost:
            if one.model == model and all(place.isdisjoint(one.devices) for place in places):
                places.append(set(one.devices))
        return len(places)


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
