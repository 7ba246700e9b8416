"""The placement policy `e2`: exploit a long held prefix, else explore by load.

A prompt of which more is held than missing goes to an instance that holds its key portion, the longest part
of the held prefix. Any other goes where its cost is lowest: the load of the last requests, what it evicts,
and its own prefill. Three rules come on top. A prompt that is explored goes to an instance that has hardly
any prefills, because its compute is free. What exploits the most loaded instance goes to the least loaded
one while the first has more than 1.5 times the load. A prompt may also be copied to the least loaded instance
while its queue has doubled.

Source: Preble §4.2, Algorithms 1 and 2. Differs: the test is the one of the text (held longer than missing);
an exact copy of a held prompt is exploited; what is evicted counts once memory is full; a node's requests
decay with time; a queue is measured by its length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stretto.cluster.eviction import victims
from stretto.cluster.instances import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Bound, Choice, Left, PlacementEvent, PlacementRequest, Unbound
from stretto.cluster.prefix_hashes import pack
from stretto.cluster.prefix_index import Held, PrefixIndex
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.record import record

HISTORY = 300
"""Number of requests whose load counts (H)."""
DECODE_IMBALANCE = 0.9
"""Share of decode units among an instance's requests from which it is bound by decodes (IMBALR)."""
DECODE_UNIT = 0.9
"""Held share of a prompt from which its request counts as a decode unit: it has hardly any prefill."""
LOAD_IMBALANCE = 1.5
"""Ratio of the largest load to the smallest from which exploits are redirected (Th_bal)."""
WARM_UP = 50
"""Number of requests for each instance, before which nothing is redirected."""
_GROWTH = 2.0


@record
class _Past:
    """A request of the history."""

    instance: InstanceId
    num_tokens: int
    num_missing: int
    num_output: int
    num_waiting: int

    @property
    def is_decode_unit(self) -> bool:
        """Whether nearly all of its prompt was held."""
        return self.num_missing <= (1.0 - DECODE_UNIT) * self.num_tokens


class E2(ScoredPlacement):
    """A placement policy that exploits held prefixes where more is held than missing, and otherwise explores
    the instance with the lowest cost.
    """

    names = ("load_s", "eviction_s", "prefill_s")

    def __init__(self, index: PrefixIndex | None = None) -> None:
        super().__init__(index)
        self._history: deque[_Past] = deque()
        self._sums: dict[InstanceId, list[int]] = {}
        self._num_output = 0
        self._num_waiting: dict[InstanceId, int] = {}

    def best(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: Held, now_s: float
    ) -> Choice:
        """Return the instance to exploit or to explore."""
        longest = max(map(held.of, options))
        if longest > request.num_tokens - longest:
            return self._exploit(request, options, held, now_s)
        ratio, busiest = max(((self._decode_ratio(view), view) for view in options), key=lambda pair: pair[0])
        if ratio > DECODE_IMBALANCE:
            return self._chosen(request, [busiest], held, now_s, "explore: it is bound by decodes")
        return self._chosen(request, options, held, now_s, "explore: lowest cost")

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the seconds of the load of the last requests, of what would be evicted, and of the prefill
        of what is missing.
        """
        profile = view.profile
        evicted = victims(self.index, request, view, held_tokens, now_s)
        eviction_s = sum(profile.per_unit_s * victim.num_tokens * victim.uses for victim in evicted)
        return self.load_s(view), eviction_s, profile.batch_s(max(0, request.num_tokens - held_tokens))

    def load_s(self, view: InstanceView) -> float:
        """Return the predicted seconds of the requests of the history that an instance got."""
        num, _, num_missing = self._sums.get(view.id, (0, 0, 0))
        mean_output = self._num_output / max(1, len(self._history))
        profile = view.profile
        return num * (profile.base_s + mean_output * profile.per_output_s) + profile.per_unit_s * num_missing

    def placed(self, instance: InstanceId, request: PlacementRequest) -> None:
        """Put a request into the history."""
        held = self.index.held_by(instance, request)
        num_waiting = self._num_waiting.get(instance, 0)
        past = _Past(
            instance, request.num_tokens, request.num_tokens - held, request.expected_output, num_waiting
        )
        self._history.append(past)
        self._add(past, 1)
        if len(self._history) > HISTORY:
            self._add(self._history.popleft(), -1)

    def observe(self, event: PlacementEvent) -> None:
        """Update the history, the queues' lengths and the index after an event."""
        super().observe(event)
        match event:
            case Bound(instance):
                self._num_waiting[instance] = self._num_waiting.get(instance, 0) + 1
            case Unbound(instance):
                self._num_waiting[instance] = self._num_waiting.get(instance, 1) - 1
            case Left(instance):
                self._history = deque(past for past in self._history if past.instance != instance)
                self._num_output = sum(past.num_output for past in self._history)
                self._sums.pop(instance, None)
                self._num_waiting.pop(instance, None)

    def check_invariants(self) -> None:
        """Check that the sums are those of the history. For tests."""
        for instance, sums in self._sums.items():
            past = [one for one in self._history if one.instance == instance]
            assert sums == [
                len(past),
                sum(one.is_decode_unit for one in past),
                sum(one.num_missing for one in past),
            ]
        assert self._num_output == sum(one.num_output for one in self._history)

    def _exploit(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: Held, now_s: float
    ) -> Choice:
        near = self._key_holders(request, options, held)
        lightest = min(options, key=self.load_s)
        heaviest = max(options, key=self.load_s)
        is_warm = len(self._history) >= min(HISTORY, WARM_UP * len(options))
        if is_warm and near == [heaviest] and self.load_s(heaviest) > LOAD_IMBALANCE * self.load_s(lightest):
            return self._chosen(request, [lightest], held, now_s, "rebalance: it has the least load")
        if lightest not in near and any(self._queue_has_doubled(view) for view in near):
            return self._chosen(
                request, [*near, lightest], held, now_s, "exploit, or copy: the queue doubled"
            )
        return self._chosen(request, near, held, now_s, "exploit: it holds the key portion")

    def _key_holders(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: Held
    ) -> list[InstanceView]:
        """Return the instances that hold the longest node of the matched path."""
        for space, key in request.keys.items():
            tree = self.index.tree(space)
            path = [] if tree is None else tree.path(pack(key.blocks))[0]
            if tree is not None and path:
                longest = max(path, key=lambda run: run.num_blocks)
                holders = set(tree.instances_of(longest.holders))
                if near := [view for view in options if view.id in holders]:
                    return near
        most = max(map(held.of, options))
        return [view for view in options if held.of(view) == most]

    def _chosen(
        self,
        request: PlacementRequest,
        options: Sequence[InstanceView],
        held: Held,
        now_s: float,
        reason: str,
    ) -> Choice:
        choice = super().best(request, options, held, now_s)
        return Choice(choice.instance, choice.held_tokens, choice.terms, reason)

    def _decode_ratio(self, view: InstanceView) -> float:
        num, num_units, _ = self._sums.get(view.id, (0, 0, 0))
        return num_units / num if num else 0.0

    def _queue_has_doubled(self, view: InstanceView) -> bool:
        """Whether the queue that requests met at an instance has doubled over the history."""
        met = [past.num_waiting for past in self._history if past.instance == view.id]
        half = len(met) // 2
        before, after = sum(met[:half]), sum(met[half:])
        return after > half and after >= _GROWTH * before

    def _add(self, past: _Past, sign: int) -> None:
        sums = self._sums.setdefault(past.instance, [0, 0, 0])
        sums[0] += sign
        sums[1] += sign * past.is_decode_unit
        sums[2] += sign * past.num_missing
        self._num_output += sign * past.num_output
