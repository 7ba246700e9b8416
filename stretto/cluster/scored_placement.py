"""What placement policies have in common that give each instance a score: the look-up of held prefixes, the
instances to compare, and how ties are broken.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count

from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import (
    Binds,
    Bound,
    Choice,
    Dispatched,
    Emptied,
    Ended,
    Joined,
    KeyUse,
    Left,
    Placement,
    PlacementEvent,
    Unbound,
)
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_index import PrefixIndex

_COMPARED = 32
"""Number of instances up to which all are compared. Of more, only those that hold most of the prompt and the
least loaded ones are."""
_PLACED = (Dispatched, Bound)
_OF_INSTANCES = (Joined, Emptied, Left)


class ScoredPlacement(Placement):
    """A placement policy that chooses the instance with the lowest score.

    A score is the sum of the terms of `terms`. Of equal scores, the instance wins where the request waits
    least, then the one with the fewest requests, then the one that was chosen longest ago.

    Attributes:
        names: names of the terms, in order.
        index: what the instances hold.
        lowest: lowest score so far, while `terms` is called for one instance after the other. An instance
            some of whose terms exceed it needs no others: any terms with a higher sum may stand for its own.
    """

    binds: Binds = "final"
    uses_keys: KeyUse = "always"
    names: tuple[str, ...] = ()

    def __init__(self, index: PrefixIndex | None = None) -> None:
        self.index = PrefixIndex() if index is None else index
        self.reported = self.index.reported
        self._turns = count(1)
        self._last_turn: dict[InstanceId, int] = {}
        self._unbound: PlacementRequest | None = None
        self.lowest = math.inf

    def load(self, instance: InstanceView) -> Load:
        """Return the load by which instances are sorted: the predicted seconds by which the requests there
        delay one more, and the number of these requests.
        """
        return instance.backlog_s, num_requests(instance)

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Return the instance with the lowest score, with the terms of its score; None if none can take the
        request.
        """
        held = self.index.held(request)
        options = hosts_of(request, instances, held, now_s)
        if not options:
            return None
        return self.best(request, options, held, now_s)

    def best(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> Choice:
        """Return the best of some instances, of which there is at least one."""
        self.prepare(request, options, held, now_s)
        chosen: InstanceView | None = None
        lowest, chosen_tokens = math.inf, 0
        self.lowest = math.inf
        chosen_terms: tuple[float, ...] = ()
        known, is_complete = held.tokens, held.is_complete
        for view in _holder_first(options, known):
            tokens = known.get(view.id, 0) if is_complete else held.of(view)
            terms = self.terms(request, view, tokens, now_s)
            score = sum(terms)
            if score > lowest:
                continue
            if score == lowest and chosen is not None:
                rank = self._rank(request, chosen, now_s)
                if rank < self._rank(request, view, now_s):
                    continue
            lowest, chosen, chosen_tokens, chosen_terms = score, view, tokens, terms
            self.lowest = lowest
        assert chosen is not None, "there is at least one instance to choose from"
        named = dict(zip(self.names, chosen_terms, strict=True))
        return Choice(chosen.id, chosen_tokens, named, self.reason(request, chosen_tokens))

    def prepare(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> None:
        """Compute what the terms of all instances need, before `terms` is called for each. Does nothing by
        default.
        """
        return

    @abstractmethod
    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the terms of an instance's score, in the order of `names`; a lower sum is better."""

    def reason(self, request: PlacementRequest, held_tokens: int) -> str:
        """Return the reason for a choice in words, for traces."""
        return f"lowest score; holds {held_tokens} of {request.num_tokens} tokens"

    def observe(self, event: PlacementEvent) -> None:
        """Update the index of what instances hold, and whose turn it was, after an event."""
        unbound, self._unbound = self._unbound, None
        self.index.observe(event)
        if isinstance(event, Ended):
            return
        if isinstance(event, _PLACED):
            if event.request is not unbound:
                self._last_turn[event.instance] = next(self._turns)
                self.placed(event.instance, event.request)
        elif isinstance(event, Unbound):
            self._unbound = event.request
        elif isinstance(event, _OF_INSTANCES):
            if isinstance(event, Left):
                self._last_turn.pop(event.instance, None)
            self.instances_changed(event)

    def _rank(self, request: PlacementRequest, view: InstanceView, now_s: float) -> tuple[float, ...]:
        """Return the numbers that decide between instances with equal scores; smaller is better."""
        return request.start_s(view, now_s), num_requests(view), self._last_turn.get(view.id, 0), view.id

    def placed(self, instance: InstanceId, request: PlacementRequest) -> None:
        """Note that a request has got an instance, to wait or to run there. `index.held_by` says what the
        instance held then. Does nothing by default.
        """
        return

    def instances_changed(self, event: Joined | Emptied | Left) -> None:
        """Note that an instance has come, takes no more work, or that its cache is no longer known. Does
        nothing by default.
        """
        return


def _holder_first(
    options: Sequence[InstanceView], held_tokens: Mapping[InstanceId, int]
) -> Sequence[InstanceView]:
    """Return instances in an order that begins with one that holds most of a prompt, if it is among them: it
    is likely to have the lowest score, beside which others need no term that takes long.
    """
    for holder in held_tokens:
        for place, view in enumerate(options):
            if view.id == holder:
                return [*options[place:], *options[:place]] if place else options
        break
    return options


def num_requests(view: InstanceView) -> int:
    """Return the number of requests that run or wait at an instance."""
    return view.num_running + view.num_waiting


def hosts_of(
    request: PlacementRequest, instances: InstanceTable, held: HeldTokens, now_s: float
) -> Sequence[InstanceView]:
    """Return the instances to compare for a request: of a small fleet all that serve and could run it, of a
    large one the least loaded and those that hold most of it.

    If none serves, suspect ones that may be tried with a request are returned.
    """
    room = instances.room_for(request.all_tokens)
    if len(instances) <= _COMPARED:
        return instances.all_hosts(room) or instances.hosts(room, now_s)
    options = {view.id: view for view in instances.hosts(room, now_s)}
    near = (*held.tokens, *(() if request.bound_to is None else (request.bound_to,)))
    for instance in near:
        view = instances.get(instance)
        if view is not None and instances.can_host(instance, room):
            options[instance] = view
    return list(options.values())
