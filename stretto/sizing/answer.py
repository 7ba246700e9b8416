"""The question of sizing, and its answer as far as it is known.

`answers` yields the answer again and again, each time with more in it, so that whoever stops early has what
was found until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stretto.sizing.capacity import Capacity
from stretto.sizing.first_guess import likely_levels
from stretto.sizing.fleets import Counts, FleetSearch, place_by_price, search_fleets
from stretto.sizing.load import Load
from stretto.sizing.objectives import Objective
from stretto.sizing.servers import Server
from stretto.sizing.study import Study
from stretto.sizing.trial import TriedFleet
from stretto.sizing.variants import Variant, variants_of

MOST_SERVERS = 64
_VARIANT_DRAWS = 3


@dataclass(frozen=True, slots=True)
class Break:
    """A load at which a fleet misses an objective in one draw.

    Attributes:
        missed: the objectives that are missed with what was measured instead, by how much, the most first.
    """

    fleet: TriedFleet
    load: Load
    missed: tuple[tuple[Objective, float], ...]

    @property
    def times_limit(self) -> float:
        """What was measured over the limit, of the objective that is missed by most."""
        objective, value_s = self.missed[0]
        return value_s / objective.limit_s


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """What a fleet serves.

    Attributes:
        num_draws: number of draws that there will be; the capacity has those that are known.
        broken: the lowest load above the capacity that is missed in the draw with the median.
        price: price per hour; None if none was given.
    """

    fleet: TriedFleet
    capacity: Capacity
    num_draws: int
    broken: Break | None = None
    price: float | None = None

    @property
    def serves_nothing(self) -> bool:
        """Whether even the lowest load misses an objective, in most draws."""
        return self.capacity.middle == 0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a change of a fleet would do to its capacity.

    Attributes:
        shares: capacity with the change over that without, by draw; empty if it is not known.
        reason: why it is not known, or what the figure rests on.
    """

    name: str
    shares: tuple[float, ...] = ()
    capacity: Capacity | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fleets:
    """What the search for the cheapest fleet has found.

    Attributes:
        fewest: the fewest servers of each kind that serve the load alone, where that was found out.
        best: the cheapest fleet so far, with its price.
        num_left: cheaper fleets that are neither tried nor excluded; None while it is not known.
        most_share: largest share of the load to which the servers of one of these add up.
        is_over: whether the search has ended.
        nearest: the fleet that misses by least, if none was found.
    """

    fewest: tuple[tuple[TriedFleet, float | None], ...] = ()
    best: tuple[TriedFleet, float | None] | None = None
    num_left: int | None = None
    most_share: float = 0.0
    is_over: bool = False
    nearest: Break | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known.

    Attributes:
        alone: one server of each kind.
        wanted: the load that is to be served; None if none was given.
        fleets: what is known of fleets for it.
        best: the cheapest fleet that serves it, with its capacity.
        what_ifs: what changes of the best fleet would do, or of one server where none was looked for.
    """

    objectives: tuple[Objective, ...]
    alone: tuple[ServedLoad, ...] = ()
    wanted: Load | None = None
    fleets: Fleets = Fleets()
    best: ServedLoad | None = None
    what_ifs: tuple[WhatIf, ...] = ()


def answers(
    study: Study,
    servers: Sequence[Server],
    wanted: Load | None,
    prices: Sequence[float] | None,
    *,
    with_variants: bool = True,
) -> Iterator[Answer]:
    """Yield the answer, each time with more in it.

    Args:
        servers: kinds of servers.
        prices: price per hour of a server of each kind; None if they are not known, which is for one kind
            only, or kinds that are not to be compared.
    """
    answer = Answer(study.objectives, wanted=wanted)
    for place_of, server in enumerate(servers):
        fleet = TriedFleet(((server, 1),))
        price = None if prices is None else prices[place_of]
        before = answer.alone
        for capacity in study.capacities(fleet, likely_levels(study, server)):
            served = _served(study, fleet, capacity, price)
            answer = replace(answer, alone=(*before, served))
            yield answer
    usable = [one for one in answer.alone if not one.serves_nothing]
    if wanted is not None and usable:
        for found in _with_fleet(study, servers, wanted, prices, answer):
            answer = found
            yield answer
    changed = answer.best or (usable[0] if usable else None)
    if with_variants and changed is not None:
        has_sessions = study.traffic.requests_per_job > 1
        variants = tuple(variants_of(changed.fleet, has_sessions=has_sessions))
        for what_ifs in _what_ifs(study, changed, variants):
            yield replace(answer, what_ifs=what_ifs)


def _with_fleet(
    study: Study,
    servers: Sequence[Server],
    wanted: Load,
    prices: Sequence[float] | None,
    answer: Answer,
) -> Iterator[Answer]:
    """Yield the answer with the cheapest fleet. Without prices, a server counts by its number of GPUs."""
    costs = [float(server.num_gpus) for server in servers] if prices is None else list(prices)

    def priced(counts: Counts) -> tuple[TriedFleet, float | None]:
        kinds = zip(servers, counts, strict=True)
        fleet = TriedFleet(tuple((server, number) for server, number in kinds if number))
        return fleet, None if prices is None else place_by_price(counts, costs)[0]

    def serves(counts: Counts) -> bool:
        return study.serves(priced(counts)[0], wanted)

    guesses = [None if one.serves_nothing else wanted.amount / one.capacity.middle for one in answer.alone]
    for search in search_fleets(costs, serves, guesses, MOST_SERVERS):
        answer = replace(answer, fleets=_known(search, priced))
        yield answer
    nearest = _nearest(study, wanted) if answer.fleets.best is None else None
    answer = replace(answer, fleets=replace(answer.fleets, is_over=True, nearest=nearest))
    yield answer
    if answer.fleets.best is not None:
        fleet, price = answer.fleets.best
        for capacity in study.capacities(fleet, [study.grid.at_most(wanted.amount)] * study.draws):
            answer = replace(answer, best=_served(study, fleet, capacity, price))
            yield answer


def _known(search: FleetSearch, priced: Callable[[Counts], tuple[TriedFleet, float | None]]) -> Fleets:
    fewest = [
        priced(tuple(number if one == kind else 0 for one in range(len(search.fewest))))
        for kind, number in enumerate(search.fewest)
        if number is not None
    ]
    return Fleets(
        tuple(fewest),
        None if search.best is None else priced(search.best),
        None if search.left is None else len(search.left),
        max(map(search.share, search.left or ()), default=0.0),
    )


def _nearest(study: Study, wanted: Load) -> Break | None:
    """Return by how much the load is missed by the fleet that came nearest; None if none was tried."""
    broken = [
        Break(fleet, load, missed)
        for (fleet, load, _), outcome in study.outcomes.items()
        if load == wanted and (missed := outcome.missed(study.objectives))
    ]
    return min(broken, key=lambda one: one.times_limit, default=None)


def _served(study: Study, fleet: TriedFleet, capacity: Capacity, price: float | None) -> ServedLoad:
    draw = capacity.middle_draw
    level = capacity.levels[draw]
    served_amount = 0.0 if level is None else study.grid.load(level).amount
    broken = [
        Break(fleet, load, missed)
        for (tried, load, of), outcome in study.outcomes.items()
        if (tried, of) == (fleet, draw) and load.amount > served_amount
        if (missed := outcome.missed(study.objectives))
    ]
    nearest = min(broken, key=lambda one: one.load.amount, default=None)
    return ServedLoad(fleet, capacity, study.draws, nearest, price)


def _what_ifs(study: Study, base: ServedLoad, variants: Sequence[Variant]) -> Iterator[tuple[WhatIf, ...]]:
    """Yield what is known of the variants, whose searches run beside each other."""
    few = replace(study, draws=min(_VARIANT_DRAWS, len(base.capacity.levels)))
    guesses: dict[TriedFleet, list[int | None]] = {}
    for fleet in (one.fleet for one in variants if one.fleet is not None):
        grown = fleet.num_servers / base.fleet.num_servers
        guesses[fleet] = [
            None if level is None else study.grid.at_most(grown * study.grid.load(level).amount)
            for level in base.capacity.levels
        ]
    known: dict[TriedFleet, Capacity] = {}
    for fleet, capacity in few.capacities_of(guesses):
        if len(capacity.levels) == few.draws:
            known[fleet] = capacity
            yield tuple(
                _what_if(study, base, one, known.get(one.fleet) if one.fleet else None)
                for one in variants
                if one.fleet is None or one.fleet in known
            )


def _what_if(study: Study, base: ServedLoad, variant: Variant, capacity: Capacity | None) -> WhatIf:
    if capacity is None:
        return WhatIf(variant.name, reason=variant.reason)
    shares = []
    for before, after in zip(base.capacity.levels, capacity.levels, strict=False):
        if before is not None:
            amount = 0.0 if after is None else study.grid.load(after).amount
            shares.append(amount / study.grid.load(before).amount)
    return WhatIf(variant.name, tuple(shares), capacity, variant.reason)
