"""The placement policy `stretto`: the instance where a request costs the fewest seconds, its own and those of
others.

The terms, all in seconds:

- wait: until its prefill begins there, in the queue and behind the prefills of others;
- prefill: of what the instance does not hold;
- eviction: the prefills that what it evicts will cost, as far as others are likely to ask for it again;
- slowdown: the delay of all requests that decode there, by the prefill and by one more sequence in each step;
- decode: of its own answer, beside those that run there.

A prefix is copied where waiting for it costs more than computing it again. A prefix that many requests use is
copied earlier: a part of the prefill is paid by the later requests that find the copy. A request with slack
(time before its query is late) waits for a held prefix as long as the slack lasts.

Source: own; one score of locality and load instead of Preble's two cases and its thresholds (§4.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stretto.cluster.eviction import victims
from stretto.cluster.instances import InstanceView
from stretto.cluster.placement import Binds, PlacementRequest
from stretto.cluster.prefix_index import Held
from stretto.cluster.scored_placement import ScoredPlacement

_STRAGGLER = 2.0
"""Slowness of an instance, relative to the other instances, from which it counts. Less is due to the load."""
_MOVE_S = 0.05
"""Seconds that a move must save."""


class Stretto(ScoredPlacement):
    """A placement policy that chooses the instance where a request costs the fewest seconds, its own and
    those of the requests that it delays or evicts.
    """

    binds: Binds = "early"
    _usual_slowness = 1.0
    names = ("wait_s", "prefill_s", "eviction_s", "slowdown_s", "decode_s", "move_s")

    def prepare(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: Held, now_s: float
    ) -> None:
        """Find the usual slowness of the instances, with which each is compared."""
        self._usual_slowness = sorted([view.slowness for view in options])[(len(options) - 1) // 2]

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the seconds of the request and of those that it delays at an instance."""
        profile, num_running = view.profile, view.num_running
        slowness = view.slowness / self._usual_slowness
        if slowness < _STRAGGLER:
            slowness = 1.0
        wait_s = request.start_s(view) / view.slowness * slowness
        held_tokens = max(held_tokens, request.computing.get(view.id, 0))
        prefill_s = slowness * profile.batch_s(max(0, request.num_tokens - held_tokens))
        eviction_s = 0.0
        for victim in victims(self.index, request, view, held_tokens, now_s):
            chance = 1.0 - math.exp(-max(0.0, victim.uses - 1.0))
            eviction_s += chance * profile.per_unit_s * victim.num_tokens / victim.num_holders
        output = request.expected_output
        decode_s = slowness * output * profile.decode_s(num_running + 1)
        slowdown_s = view.num_decoding * prefill_s + num_running * output * profile.per_neighbour_s
        move_s = 0.0 if request.bound_to in (None, view.id) else _MOVE_S
        return wait_s, prefill_s, eviction_s, slowdown_s, decode_s, move_s
