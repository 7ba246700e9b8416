"""The placement policy `stretto`: the instance where a request costs the fewest seconds, its own and those of
others.

The terms, all in seconds:

- wait: until its prefill begins there, in the queue and behind what is left of the prefills of others;
- prefill: of what the instance does not hold;
- eviction: the prefills that what it evicts will cost, as far as others are likely to ask for it again, and
  where all caches are full, a price of each new token: the faster the instance's cache is renewed compared
  with the others, the higher, so that all keep prefixes for about the same time;
- slowdown: the delay of all requests that run there, by the prefill in as many of their steps as are left,
  and by one more sequence in each step. It counts as often as a step there takes the time of one alone, for
  requests that stay longer are beside more others, and delay them;
- decode: of its own answer, beside those that run there. A request that comes and one that it meets run
  beside each other for half of an answer in the mean, however lengths vary: the residual life of the one
  that runs is as much longer as it is likelier to be a long one. It is less where later requests are free to
  go to the instance with fewer neighbours, which makes up for the choice;
- later: the delay of the requests that will come before the instance has done all its prefills, this one
  included: each of them waits for this prefill too. The requests of jobs come in bursts, which the rate of
  the last seconds does not foretell: each second of their prefills costs `_BURST_PRICE` more;
- move: what a move to another instance must save, where the request waits at one already;
- class: what it costs that requests for latency and for throughput meet at an instance (`class_loads.py`);
- apart: a little, where its siblings or the requests of its job are at other instances.

A prefix is thus copied where waiting for it costs more than computing it again does to all.

While requests for latency run at an instance, others run beside them only as far as these leave room. A
request waits for that no longer than until its engine's age limit.

Source: own; one score of locality and load instead of Preble's two cases and its thresholds (§4.2).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from stretto.cluster.class_loads import ClassPrices
from stretto.cluster.eviction import victims
from stretto.cluster.group_locations import GroupLocations
from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Binds, Emptied, Joined, Left, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.renewal import renewal_speeds
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.model.profile import UNKNOWN_LLM, Profile

_STRAGGLER = 2.0
"""Slowness of an instance, relative to the other instances, from which it counts. Less is due to the load."""
_CHUNK_TOKENS = 512
"""Tokens of a chunk of a prefill, which delays the decodes beside it."""
_RATE_S = 30.0
"""Seconds after which a request counts as 1/e of one in the rates of requests and of prefills."""
_LEAST_SEEN_S = 5.0
_MOST_UTILISATION = 0.5
_MOVE_S = 0.05
"""Seconds that a move must save."""
_RENEWAL_PRICE = 3.0
"""Price of a token that is new to a full cache of mean renewal, in prefills of a token. Found by trial: with
1, four caches have 2 % fewer hits together than one of their size, and with 3 about 1 % fewer."""
_BURST_PRICE = 0.75
"""Price in seconds of a second of a job's prefill, for requests that come during it. Where instances are busy
for a share x of the time with requests like this one, others wait x / (2 - 2 x) seconds for each of its
seconds: the price is that at 60 %. It decides that ten calls of one instant, or eight readers of one answer,
compute what they share once: apart they would take 2.5 % less time, and four times the work."""
_APART_S = 0.05
"""Price of an instance that has no request of a request's task group or job, while another one has."""
_CLEARLY = 1.000001
"""Ratio to the lowest score from which an instance is not looked at further. It leaves room for rounding, so
that ties are broken by rule."""
_TOO_MANY = (math.inf,) * 9
"""Terms of an instance whose score is known to exceed the lowest."""
_Speeds: TypeAlias = tuple[float, float, float, float, float, float, float]


class Stretto(ScoredPlacement):
    """A placement policy that chooses the instance where a request costs the fewest seconds, its own and
    those of the requests that it delays or evicts.
    """

    binds: Binds = "early"
    names = (
        "wait_s",
        "prefill_s",
        "eviction_s",
        "slowdown_s",
        "decode_s",
        "later_s",
        "move_s",
        "class_s",
        "apart_s",
    )

    def __init__(self, index: PrefixIndex | None = None) -> None:
        super().__init__(index)
        self._classes = ClassPrices()
        self._together = GroupLocations()
        self._siblings: Collection[InstanceId] = ()
        self._options: Sequence[InstanceView] = ()
        self._renewal: Mapping[InstanceId, float] | None = None
        self._mean_renewal = 0.0
        self._usual_slowness = 1.0
        self._speeds: dict[InstanceId, tuple[Profile, _Speeds]] = {}
        self._num_requests = self._missing_tokens = self._num_free = 0.0
        self._counted_s = 0.0
        self._requests_per_s = self._tokens_per_s = self._free_per_s = 0.0
        self._freedom: tuple[PlacementRequest, float] | None = None
        self._first_s: float | None = None

    def prepare(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> None:
        """Find the usual slowness of the instances, with which each is compared, and how busy they are."""
        if len(options) > 1:
            self._usual_slowness = 1.0
            for view in options:
                if view.slowness != 1.0:
                    slownesses = sorted([view.slowness for view in options])
                    self._usual_slowness = slownesses[(len(options) - 1) // 2]
                    break
        self._measure_rates(now_s)
        self._options, self._renewal = options, None
        self._freedom = request, _freedom(request, held, len(options))
        self._siblings = self._together.instances(request)

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the seconds of the request and of those that it delays at an instance."""
        known = self._speeds.get(view.id)
        if known is None or known[0] is not view.profile:
            known = self._speeds[view.id] = view.profile, _speeds(view.profile)
        base_s, per_token_s, per_output_s, per_neighbour_s, crowding, chunk_s, delay = known[1]
        num_running, output, slowness = view.num_running, request.expected_output, 1.0
        if request.computing:
            held_tokens = max(held_tokens, request.computing.get(view.id, 0))
        if view.slowness >= _STRAGGLER * self._usual_slowness:
            slowness = view.slowness / self._usual_slowness
        missing = request.num_tokens - held_tokens
        prefill_s = slowness * (base_s + per_token_s * missing)
        left_s = chunk_s * view.expected_output / 2
        beside = 2.0 + self._free_per_s * output * per_output_s
        neighbours_s = num_running * output * per_neighbour_s / beside
        if request.purpose.job and view.profile.reads_shared_once:
            delay_s = min(per_token_s * missing, delay * left_s)
            slowdown_s = num_running * delay_s + neighbours_s * _new_share(request, view)
            neighbours_s *= _read_share(view)
        else:
            slowdown_s = neighbours_s + num_running * delay * (prefill_s if prefill_s < left_s else left_s)
            slowdown_s *= 1.0 + num_running * crowding
        decode_s = slowness * (output * per_output_s + neighbours_s)
        if prefill_s + slowdown_s + decode_s > _CLEARLY * self.lowest:
            return _TOO_MANY
        wait_s = request.start_s(view, now_s)
        if view.slowness != 1.0:
            wait_s /= view.slowness
        if slowness != 1.0:
            wait_s *= slowness
        busy_share = self._tokens_per_s * per_token_s
        idle_share = 1.0 - (busy_share if busy_share < _MOST_UTILISATION else _MOST_UTILISATION)
        later_s = self._requests_per_s * prefill_s * (wait_s + prefill_s / 2) / idle_share
        if request.purpose.job:
            later_s += _BURST_PRICE * prefill_s
        move_s = 0.0 if request.bound_to is None or request.bound_to == view.id else _MOVE_S
        class_s = self._classes.seconds(request, view, prefill_s, decode_s)
        apart_s = _APART_S if self._siblings and view.id not in self._siblings else 0.0
        eviction_s = 0.0
        others_s = wait_s + prefill_s + slowdown_s + decode_s + later_s + move_s
        if others_s + class_s + apart_s <= self.lowest:
            eviction_s = per_token_s * self._evicted_tokens(request, view, held_tokens, now_s)
        return wait_s, prefill_s, eviction_s, slowdown_s, decode_s, later_s, move_s, class_s, apart_s

    def admits(self, request: PlacementRequest, view: InstanceView, now_s: float) -> bool:
        """Return whether the requests for latency at an instance leave room for a request."""
        return self._classes.admits(request, view, now_s)

    def _evicted_tokens(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> float:
        """Return how many tokens of what an instance would evict are likely to be computed again there, and
        the price in tokens of those that are new to a full cache.
        """
        cache, tokens = self.index.caches.get(view.id), 0.0
        if cache is None:
            return tokens
        if self._renewal is None:
            self._renewal = renewal_speeds(self.index, self._options, now_s)
            if self._renewal:
                self._mean_renewal = math.fsum(self._renewal.values()) / len(self._renewal)
        if self._renewal:
            price = _RENEWAL_PRICE * self._renewal[view.id] / self._mean_renewal
            tokens = price * (request.num_tokens - held_tokens)
        if cache.num_blocks + request.num_tokens <= cache.capacity:
            return tokens
        for victim in victims(self.index, request, view, held_tokens, now_s, used_more_than=1.0):
            if victim.uses > 1.0:
                tokens += (1.0 - math.exp(1.0 - victim.uses)) * victim.num_tokens / victim.num_holders
        return tokens

    def _measure_rates(self, now_s: float) -> None:
        """Update how many requests come to an instance in a second, how many of them were free to go
        elsewhere, and how many tokens it has to prefill for them, as seen lately.
        """
        num_instances = len(self.index.members)
        if not num_instances or self._first_s is None:
            return
        seen_s = now_s - self._first_s
        if seen_s < _LEAST_SEEN_S:
            seen_s = _LEAST_SEEN_S
        elif seen_s > _RATE_S:
            seen_s = _RATE_S
        share = math.exp(min(0.0, self._counted_s - now_s) / _RATE_S) / (seen_s * num_instances)
        self._requests_per_s = share * self._num_requests
        self._tokens_per_s = share * self._missing_tokens
        self._free_per_s = share * self._num_free

    def placed(self, instance: InstanceId, request: PlacementRequest) -> None:
        """Count a request, and the tokens that an instance has to prefill for it."""
        now_s = self.index.now_s
        if self._first_s is None:
            self._first_s = self._counted_s = now_s
        faded = math.exp((self._counted_s - now_s) / _RATE_S)
        missing = request.num_tokens - self.index.held_by(instance, request)
        self._num_requests = self._num_requests * faded + 1.0
        self._num_free *= faded
        if self._freedom is not None and self._freedom[0] is request:
            self._num_free += self._freedom[1]
        self._missing_tokens = self._missing_tokens * faded + missing
        self._counted_s = now_s

    def observe(self, event: PlacementEvent) -> None:
        """Update the index, the rates, and where classes and groups run."""
        self._classes.loads.observe(event)
        self._together.observe(event)
        super().observe(event)

    def instances_changed(self, event: Joined | Emptied | Left) -> None:
        """Forget the speed of an instance that has left."""
        if isinstance(event, Left):
            self._speeds.pop(event.instance, None)


def _freedom(request: PlacementRequest, held: HeldTokens, num_options: int) -> float:
    """Return the share of a request's prompt that no instance holds before others: 1 for a prompt that costs
    the same everywhere.
    """
    tokens = held.tokens.values()
    least = min(tokens, default=0) if len(tokens) >= num_options else 0
    return 1.0 - (max(tokens, default=0) - least) / max(1, request.num_tokens)


def _new_share(request: PlacementRequest, view: InstanceView) -> float:
    """Return which share of the tokens of a request the steps of an instance read for it alone."""
    return request.new_tokens(view) / max(1, request.all_tokens)


def _read_share(view: InstanceView) -> float:
    """Return which share of the tokens of running requests the steps of an instance read."""
    return view.running_tokens / max(1, view.running_tokens + view.repeated_tokens)


def _speeds(profile: Profile) -> _Speeds:
    """Return the times of a profile: the base, a token, a step of decodes, a neighbour in it and the share of
    the step that this is, a step with a chunk of a prefill, and by which share of this step it delays a
    decode: the rest is what a decode takes anyway. Without times of prefills nothing would favour held
    prefixes, so those of `UNKNOWN_LLM` stand in.
    """
    if not profile.per_unit_s:
        profile = UNKNOWN_LLM
    chunk_s = profile.base_s + profile.per_unit_s * _CHUNK_TOKENS
    delay = max(0.0, 1.0 - profile.per_output_s / chunk_s) if chunk_s else 0.0
    return (
        profile.base_s,
        profile.per_unit_s,
        profile.per_output_s,
        profile.per_neighbour_s,
        profile.per_neighbour_s / profile.per_output_s if profile.per_output_s else 0.0,
        chunk_s,
        delay,
    )
