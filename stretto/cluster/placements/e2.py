"""The placement policy `e2`: exploit a long held prefix, else explore by load.

A prompt of which more is held than missing goes to an instance that holds its key portion, the longest part
of the held prefix. Any other goes where its cost is lowest: the load of the last requests, what it evicts,
and its own prefill. Three rules come on top. A prompt that is explored goes to an instance that has hardly
any prefills, because its compute is free. A prompt that would exploit an instance with more than 1.5 times
the least load goes to the instance with the least load. So does one of a prefix whose wait has doubled, which
makes a copy of the prefix (`hot_prefixes.py`).

Source: Preble §4.2, Algorithms 1 and 2. Differs: the test is the one of the text (held longer than missing);
an exact copy of a held prompt is exploited; what is evicted counts once memory is full; a node's requests
decay with time; exploits are redirected from every overloaded instance, not only from the most loaded one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stretto.cluster.eviction import victims
from stretto.cluster.hot_prefixes import HotPrefixes
from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.key_portion import KeyPortion, key_portion
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Bound, Choice, Dispatched, Emptied, Left, PlacementEvent, Unbound
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.model.record import record

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


@record
class _Past:
    """A request of the history."""

    instance: InstanceId
    num_tokens: int
    num_missing: int
    num_output: int

    @property
    def is_decode_unit(self) -> bool:
        """Whether nearly all of its prompt was held."""
        return self.num_missing <= (1.0 - DECODE_UNIT) * self.num_tokens


@record
class _Exploit:
    """A request that exploits a prefix and was not sent out yet.

    Attributes:
        is_copy: whether the instance did not hold the prefix, or was not to get more requests for it.
        at_s: time at which it was bound.
    """

    portion: KeyPortion
    is_copy: bool
    at_s: float


class E2(ScoredPlacement):
    """A placement policy that exploits held prefixes where more is held than missing, and otherwise explores
    the instance with the lowest cost.

    Args:
        adjusts_loads: whether requests are redirected from overloaded instances and prefixes are copied.
        balances_decodes: whether misses go to instances that are bound by decodes.
    """

    names = ("load_s", "eviction_s", "prefill_s")

    def __init__(
        self,
        index: PrefixIndex | None = None,
        *,
        adjusts_loads: bool = True,
        balances_decodes: bool = True,
    ) -> None:
        super().__init__(index)
        self.hot = HotPrefixes(HISTORY)
        self._adjusts_loads = adjusts_loads
        self._balances_decodes = balances_decodes
        self._history: deque[_Past] = deque()
        self._sums: dict[InstanceId, list[int]] = {}
        self._num_output = 0
        self._exploits: dict[int, _Exploit] = {}
        self._going_out: tuple[PlacementRequest, _Exploit] | None = None

    def best(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> Choice:
        """Return the instance to exploit or to explore."""
        longest = max(map(held.of, options))
        if longest > request.num_tokens - longest:
            return self._exploit(request, options, held, now_s)
        busiest = max(options, key=self._decode_ratio)
        if self._balances_decodes and self._decode_ratio(busiest) > DECODE_IMBALANCE:
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
        past = _Past(instance, request.num_tokens, request.num_tokens - held, request.expected_output)
        self._history.append(past)
        self._add(past, 1)
        if len(self._history) > HISTORY:
            self._add(self._history.popleft(), -1)

    def observe(self, event: PlacementEvent) -> None:
        """Update the history, the waits of prefixes and the index after an event."""
        before, self._going_out = self._going_out, None
        match event:
            case Bound(instance, request, at_s):
                exploit = _of(request, before) or self._exploit_of(instance, request, at_s)
                if exploit is not None:
                    self._exploits[id(request)] = exploit
            case Unbound(_, request) if exploit := self._exploits.pop(id(request), None):
                self._going_out = request, exploit
            case Dispatched(instance, request, at_s):
                exploit = _of(request, before) or self._exploit_of(instance, request, at_s)
                if exploit is not None:
                    self._sent(instance, exploit, at_s)
            case Emptied(instance):
                self.hot.left(instance)
            case Left(instance):
                self._history = deque(past for past in self._history if past.instance != instance)
                self._num_output = sum(past.num_output for past in self._history)
                self._sums.pop(instance, None)
                self.hot.left(instance)
        super().observe(event)

    @property
    def num_waiting(self) -> int:
        """Number of requests that exploit a prefix and wait to be sent out."""
        return len(self._exploits)

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
        self.hot.check_invariants()

    def _exploit(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> Choice:
        portion = key_portion(self.index, request, held)
        near = self._holders(request, portion, options, held)
        lightest = min(options, key=self.load_s)
        if self._adjusts_loads and lightest not in near:
            least_s = min(map(self.load_s, near))
            is_warm = len(self._history) >= min(HISTORY, WARM_UP * len(options))
            if is_warm and least_s > LOAD_IMBALANCE * self.load_s(lightest):
                return self._chosen(request, [lightest], held, now_s, "rebalance: it has the least load")
            if portion is not None and self.hot.wants_copy(portion.last):
                return self._chosen(request, [lightest], held, now_s, "copy: the wait has doubled")
        return self._chosen(request, near, held, now_s, "exploit: it holds the key portion")

    def _holders(
        self,
        request: PlacementRequest,
        portion: KeyPortion | None,
        options: Sequence[InstanceView],
        held: HeldTokens,
    ) -> Sequence[InstanceView]:
        """Return the instances to exploit: those that hold the key portion and are not retired; of a copied
        prefix, the one that gets this part of it.
        """
        near = [] if portion is None else [view for view in options if view.id in portion.holders]
        if portion is None or not near:
            most = max(map(held.of, options))
            return [view for view in options if held.of(view) == most]
        near = [view for view in near if not self.hot.is_retired(portion.last, view.id)] or near
        home = None if portion.next is None else self.hot.home_of(portion.last, portion.next)
        limit_s = LOAD_IMBALANCE * min(map(self.load_s, near))
        return [view for view in near if view.id == home and self.load_s(view) <= limit_s] or near

    def _exploit_of(self, instance: InstanceId, request: PlacementRequest, at_s: float) -> _Exploit | None:
        """Return what a request exploits that has got an instance just now; None if it is explored."""
        portion = key_portion(self.index, request, self.index.held(request))
        if portion is None:
            return None
        is_new = instance not in portion.holders or self.hot.is_retired(portion.last, instance)
        return _Exploit(portion, is_new, at_s)

    def _sent(self, instance: InstanceId, exploit: _Exploit, now_s: float) -> None:
        portion, wait_s = exploit.portion, max(0.0, now_s - exploit.at_s)
        self.hot.sent(portion.last, portion.next, instance, wait_s, now_s, is_copy=exploit.is_copy)

    def _chosen(
        self,
        request: PlacementRequest,
        options: Sequence[InstanceView],
        held: HeldTokens,
        now_s: float,
        reason: str,
    ) -> Choice:
        choice = super().best(request, options, held, now_s)
        return Choice(choice.instance, choice.held_tokens, choice.terms, reason)

    def _decode_ratio(self, view: InstanceView) -> float:
        num, num_units, _ = self._sums.get(view.id, (0, 0, 0))
        return num_units / num if num else 0.0

    def _add(self, past: _Past, sign: int) -> None:
        sums = self._sums.setdefault(past.instance, [0, 0, 0])
        sums[0] += sign
        sums[1] += sign * past.is_decode_unit
        sums[2] += sign * past.num_missing
        self._num_output += sign * past.num_output


def _of(request: PlacementRequest, going_out: tuple[PlacementRequest, _Exploit] | None) -> _Exploit | None:
    """Return what is known of a request that has left a queue just now."""
    return going_out[1] if going_out is not None and going_out[0] is request else None
