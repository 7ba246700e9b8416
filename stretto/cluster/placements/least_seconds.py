"""The placement policy `least_seconds`: the instance where a request is predicted to end first.

Predicted end: the prefills already there, the prefill of what the instance does not hold, and a decode step
with all that run there for each token of the answer. To this comes the time by which the prefill delays
those that decode there. Where a part of the prompt was prefilled for the same query, any other instance has
to be better by a margin. In a tie, an instance that holds the beginning of the prompt wins. An instance that
is computing at least half of the prompt right now comes before all: the request waits there for blocks that
it would compute again elsewhere.

Source: Teola §6 (load balancing). Differs: seconds instead of occupied KV slots, and held prefixes count.
Preble §4.2, where a prefix that is longer than the rest decides the place.
"""

from __future__ import annotations

from stretto.cluster.held_blocks import HeldBlocks, loading_shares
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.messages import KVReport
from stretto.cluster.placement import Choice, Emptied, KeyUse, Left, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest

_MAX_HOLDERS = 8
"""Number of holders of a prefix to compare for each space, besides the least loaded instances."""
_LEAVE_MARGIN = 0.1
"""Share of its predicted seconds by which an instance must be better than the one that has prefilled the
beginning of the prompt for the same query. A prediction errs by about so much: neighbours end, others come.
An instance where nothing runs need only begin to answer earlier by this share of the time until then; that it
decodes faster by less than this share, because it has no neighbours, does not count.
"""


class LeastSeconds(Placement):
    """A placement policy that chooses the instance where a request is predicted to end first.

    What instances report about their prefix caches counts: tokens that an instance holds need not be
    prefilled there.
    """

    uses_keys: KeyUse = "reported"
    reported: HeldBlocks

    def __init__(self) -> None:
        self.reported = HeldBlocks()

    def load(self, instance: InstanceView) -> Load:
        """Return the load by which instances are sorted: the predicted seconds by which running requests
        delay one more, then the numbers of decodes and tokens.
        """
        return instance.outstanding_s, instance.num_decoding, instance.running_tokens

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Return the instance where a request is predicted to end first, with the predicted seconds; None if
        it fits nowhere now.
        """
        room = instances.room_for(request.all_tokens)
        for instance, num_tokens in request.computing.items():
            if 2 * num_tokens >= request.num_tokens and instances.has_room(instance, room):
                return Choice(instance, num_tokens, reason="it is computing the beginning of the prompt")
        options = {view.id: view for view in instances.candidates(room, now_s)}
        for instance in self._holders(request):
            if instances.has_room(instance, room) and (view := instances.get(instance)) is not None:
                options[instance] = view
        home = next((view for one in request.hints if (view := instances.get(one)) is not None), None)
        if len(options) < 2:
            return next((self._price(request, view, home) for view in options.values()), None)
        return min(
            (self._price(request, view, home) for view in options.values()),
            key=lambda choice: (
                sum(choice.terms.values()),
                not choice.held_tokens,
                options[choice.instance].running_tokens,
                choice.instance,
            ),
        )

    def observe(self, event: PlacementEvent) -> None:
        """Update the index of what the caches of instances hold, after an event such as a report of an
        instance.
        """
        match event:
            case KVReport(instance=instance, events=events):
                self.reported.apply(instance, events)
            case Left(instance) | Emptied(instance):
                self.reported.forget(instance)

    def _holders(self, request: PlacementRequest) -> list[int]:
        found = list(request.hints)
        for key in request.keys.values():
            found += self.reported.holders(key.blocks, _MAX_HOLDERS)
        return found

    def _price(self, request: PlacementRequest, view: InstanceView, home: InstanceView | None) -> Choice:
        held = self._held_tokens(request, view)
        prefill_s = view.profile.batch_s(max(0, request.num_tokens - held))
        terms = {
            "queue_s": view.prefill_s,
            "prefill_s": prefill_s,
            "decode_s": view.profile.decode_s(view.num_running + 1) * request.expected_output,
            "delay_s": view.num_decoding * prefill_s,
        }
        if home is not None and view.id not in request.hints:
            decode_s = terms["decode_s"]
            margin_s = _LEAVE_MARGIN * decode_s
            if not view.num_running:
                gain_s = home.profile.decode_s(home.num_running + 1) * request.expected_output - decode_s
                margin_s = max(0.0, min(gain_s, margin_s))
            terms["leave_s"] = _LEAVE_MARGIN * (sum(terms.values()) - decode_s) + margin_s
        reason = f"ends first; holds {held} of {request.num_tokens} tokens"
        return Choice(view.id, held, terms, reason)

    def _held_tokens(self, request: PlacementRequest, view: InstanceView) -> int:
        held = request.hints.get(view.id, 0)
        if (key := request.keys.get(view.space)) is not None:
            num_blocks = self.reported.num_held(view.id, key.blocks, loading_shares(view.profile))
            held = max(held, int(key.block_tokens * num_blocks))
        return min(held, request.num_tokens)
