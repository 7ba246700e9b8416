"""The instances of one model, and which of them has room for a context."""

from __future__ import annotations

import math

from stretto.cluster.messages import InstanceId
from stretto.cluster.room.call_means import CallMeans
from stretto.cluster.room.contexts import Context
from stretto.cluster.room.instance_room import InstanceRoom

_RESERVE = 0.10
"""Part of the memory that newcomers leave free."""
_PASSED_FOR = 8.0
"""Times that the whole memory could be computed while what is next lets others pass. Then they give way."""
_LANE_SIZE, _LANE_IN_FLIGHT = 0.02, 0.05
"""Parts of the memory that one request by the lane may take, and all of them together."""


class Rooms:
    """The memories of all instances.

    Attributes:
        by_id: memories of all instances, by instance. Nothing enters at a new one before `serve`.
        serving: memories of the instances where contexts may enter.
        cleared: instance where nothing enters or goes on but `cleared_for`, which has been next for too long.
    """

    def __init__(self) -> None:
        self.by_id: dict[InstanceId, InstanceRoom] = {}
        self.serving: list[InstanceRoom] = []
        self.means = CallMeans()
        self.cleared: InstanceRoom | None = None
        self.cleared_for: Context | None = None

    def serve(self, instance: InstanceId, *, is_serving: bool) -> None:
        """Let contexts enter at an instance, or not any more."""
        self.by_id[instance].is_serving = is_serving
        self.serving = [room for room in self.by_id.values() if room.is_serving]

    def remove(self, instance: InstanceId) -> None:
        """Remove the memory of an instance, where nothing is inside."""
        del self.by_id[instance]
        self.serving = [room for room in self.by_id.values() if room.is_serving]

    def of(self, context: Context) -> InstanceRoom | None:
        """Return the instance where a context was last; None if there is none any more."""
        return None if context.instance is None else self.by_id.get(context.instance)

    def around(self, context: Context) -> InstanceRoom:
        """Return the instance where a context has room."""
        assert context.is_inside
        assert context.instance is not None
        return self.by_id[context.instance]

    def least_need(self, context: Context) -> float:
        """Return how many tokens a context outside adds where it adds the fewest."""
        return min(room.adds(context) for room in self.by_id.values())

    def cached_at(self, context: Context) -> InstanceRoom | None:
        """Return the instance whose memory holds what a context outside adds, and where its program has room
        with another context, or its own prefix is probably still in the cache; None if there is none.
        """
        inside = context.program.inside
        for instance in dict.fromkeys((context.instance, *inside)):
            room = None if instance is None else self.by_id.get(instance)
            if room is None or not room.is_serving or room is self.cleared:
                continue
            taken = room.claims + room.adds(context)
            since = room.computed - context.used_at
            is_held = context.is_computed and not context.in_lane and taken + since <= room.belief.tokens
            if (is_held or instance in inside) and taken <= room.belief.tokens:
                return room
        return None

    def clears_s(self, next_s: float) -> float:
        """Return the time from which others give way to what does not fit, and is next from `next_s` on."""
        keeps_s = 0.0
        for room in self.serving:
            keeps_s = max(keeps_s, room.keeps_for_s())
        return next_s + _PASSED_FOR * keeps_s

    def clear_for(self, context: Context) -> None:
        """Let nothing but a context enter or go on at the instance where the fewest others have to leave."""
        largest = self._largest()

        def left(room: InstanceRoom) -> tuple[bool, float]:
            adds = room.adds(context)
            is_large = room.belief.tokens >= min(adds, largest)
            return is_large, room.belief.tokens - room.claims - adds

        self.cleared, self.cleared_for = max(self.serving, key=left), context

    def let_others_enter(self) -> None:
        """Clear no instance any more."""
        self.cleared = self.cleared_for = None

    def free(self) -> float:
        """Return the tokens that newcomers may add to those inside where they may add most."""
        most = -math.inf
        for room in self.serving:
            is_open = room is not self.cleared
            free = (1.0 - _RESERVE) * room.belief.tokens - room.claims if is_open else 0.0
            if free > most:
                most = free
        return most

    def roomiest(self, context: Context, *, keeps_reserve: bool = True) -> tuple[float, InstanceRoom | None]:
        """Return how many tokens a context that is outside adds where it adds the fewest, and the instance
        where it should enter: where it was, or where most room is left beside it; None if it fits nowhere.
        """
        least, best, most = math.inf, None, 0.0
        reserve = _RESERVE if keeps_reserve else 0.0
        for room in self.serving:
            adds = room.adds(context)
            if adds < least:
                least = adds
            if room is self.cleared and context is not self.cleared_for:
                continue
            left = (1.0 - reserve) * room.belief.tokens - room.claims - adds
            if left < 0.0 and (room.inside or room.belief.tokens < min(adds, self._largest())):
                continue
            if room.id == context.instance and context.is_computed:
                return adds, room
            if best is None or left > most:
                best, most = room, left
        return least, best

    def emptiest_lane(self) -> tuple[InstanceRoom, float]:
        """Return the instance with the emptiest lane, and how many tokens a request there may take."""
        emptiest, most = self.serving[0], -math.inf
        for room in self.serving:
            if (free := _lane_free(room)) > most:
                emptiest, most = room, free
        return emptiest, min(most, _LANE_SIZE * emptiest.belief.tokens)

    def lane_at(self, context: Context, need: float) -> InstanceRoom | None:
        """Return the instance where a context was computed last, if its lane takes so many tokens more."""
        room = self.of(context)
        if room is None or not (context.is_computed and room.is_serving):
            return None
        return room if need <= min(_lane_free(room), _LANE_SIZE * room.belief.tokens) else None

    def _largest(self) -> float:
        """Return the tokens of the largest memory where contexts may enter."""
        return max(room.belief.tokens for room in self.serving)


def _lane_free(room: InstanceRoom) -> float:
    """Return the tokens that the lane of an instance still takes."""
    return _LANE_IN_FLIGHT * room.belief.tokens - room.lane_tokens
