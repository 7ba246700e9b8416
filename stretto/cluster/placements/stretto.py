"""The placement policy `stretto`: the instance where a request costs the fewest seconds, its own and those of
others.

The terms, all in seconds:

- wait: until its prefill begins there, in the queue and behind the prefills of others;
- prefill: of what the instance does not hold. The busier all instances are, the more later requests wait for
  it too, so that it counts 1 / (1 - utilisation)² times;
- eviction: the prefills that what it evicts will cost, as far as others are likely to ask for it again;
- slowdown: the delay of all requests that decode there, by the prefill and by one more sequence in each step;
- decode: of its own answer, beside those that run there;
- move: what a move to another instance must save, where the request waits at one already.

A prefix is thus copied where waiting for it costs more than computing it again does to all.

Source: own; one score of locality and load instead of Preble's two cases and its thresholds (§4.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stretto.cluster.eviction import victims
from stretto.cluster.instances import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Binds, Dispatched, Joined, Left, PlacementEvent, PlacementRequest
from stretto.cluster.prefix_index import Held, PrefixIndex
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.costs.profile import Profile

_STRAGGLER = 2.0
"""Slowness of an instance, relative to the other instances, from which it counts. Less is due to the load."""
_CHUNK_TOKENS = 512
"""Tokens of a chunk of a prefill, which delays the decodes beside it."""
_UTILISATION_S = 30.0
"""Seconds after which a prefill counts as 1/e of one in the utilisation."""
_LEAST_SEEN_S = 5.0
_MOST_UTILISATION = 0.5
_MOVE_S = 0.05
"""Seconds that a move must save."""


class Stretto(ScoredPlacement):
    """A placement policy that chooses the instance where a request costs the fewest seconds, its own and
    those of the requests that it delays or evicts.
    """

    binds: Binds = "early"
    names = ("wait_s", "prefill_s", "eviction_s", "slowdown_s", "decode_s", "move_s")

    def __init__(self, index: PrefixIndex | None = None) -> None:
        super().__init__(index)
        self._usual_slowness = 1.0
        self._delays: dict[InstanceId, tuple[Profile, float]] = {}
        self._missing_tokens = 0.0
        self._counted_s = self._now_s = 0.0
        self._tokens_per_s = 0.0
        self._first_s: float | None = None
        self._num_instances = 0

    def prepare(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: Held, now_s: float
    ) -> None:
        """Find the usual slowness of the instances, with which each is compared, and how busy they are."""
        if len(options) > 1:
            self._usual_slowness = sorted([view.slowness for view in options])[(len(options) - 1) // 2]
        self._tokens_per_s = self._missing_per_s(now_s)

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the seconds of the request and of those that it delays at an instance."""
        profile, num_running, output = view.profile, view.num_running, request.expected_output
        per_token_s = profile.per_unit_s
        slowness = view.slowness / self._usual_slowness
        if slowness < _STRAGGLER:
            slowness = 1.0
        if request.computing:
            held_tokens = max(held_tokens, request.computing.get(view.id, 0))
        missing = request.num_tokens - held_tokens
        prefill_s = slowness * (profile.base_s + per_token_s * missing)
        wait_s = request.start_s(view, now_s) / view.slowness * slowness
        eviction_s = 0.0
        for victim in victims(self.index, request, view, held_tokens, now_s):
            chance = 1.0 - math.exp(-max(0.0, victim.uses - 1.0))
            eviction_s += chance * per_token_s * victim.num_tokens / victim.num_holders
        neighbours_s = num_running * output * profile.per_neighbour_s
        slowdown_s = neighbours_s + view.num_decoding * self._delay(view) * prefill_s
        decode_s = slowness * (output * profile.per_output_s + neighbours_s)
        idle_share = 1.0 - min(_MOST_UTILISATION, self._tokens_per_s * per_token_s)
        move_s = 0.0 if request.bound_to in (None, view.id) else _MOVE_S
        return wait_s, prefill_s / (idle_share * idle_share), eviction_s, slowdown_s, decode_s, move_s

    def _delay(self, view: InstanceView) -> float:
        """Return the share of its seconds by which a prefill delays each decode beside it: the rest of each
        step is what the decode takes anyway.
        """
        profile, known = view.profile, self._delays.get(view.id)
        if known is None or known[0] is not profile:
            chunk_s = profile.base_s + profile.per_unit_s * _CHUNK_TOKENS
            delay = max(0.0, 1.0 - profile.per_output_s / chunk_s) if chunk_s else 0.0
            known = self._delays[view.id] = profile, delay
        return known[1]

    def _missing_per_s(self, now_s: float) -> float:
        """Return how many tokens an instance has to prefill in a second, as seen lately."""
        if not self._num_instances or self._first_s is None:
            return 0.0
        lately = self._missing_tokens * math.exp(min(0.0, self._counted_s - now_s) / _UTILISATION_S)
        seen_s = max(_LEAST_SEEN_S, min(_UTILISATION_S, now_s - self._first_s))
        return lately / (seen_s * self._num_instances)

    def observe(self, event: PlacementEvent) -> None:
        """Update the index, the number of instances and the time after an event."""
        match event:
            case Dispatched(at_s=at_s):
                self._now_s = max(self._now_s, at_s)
                self._first_s = self._now_s if self._first_s is None else self._first_s
            case Joined():
                self._num_instances += 1
            case Left(instance):
                self._num_instances -= 1
                self._delays.pop(instance, None)
        super().observe(event)

    def placed(self, instance: InstanceId, request: PlacementRequest) -> None:
        """Count the tokens that an instance has to prefill."""
        missing = request.num_tokens - self.index.held_by(instance, request)
        faded = math.exp((self._counted_s - self._now_s) / _UTILISATION_S)
        self._missing_tokens = self._missing_tokens * faded + missing
        self._counted_s = self._now_s


