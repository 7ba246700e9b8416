"""The answer in words and as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from stretto.model.errors import UserError
from stretto.sizing.answer import MOST_SERVERS, Answer, Break, ServedLoad, WhatIf
from stretto.sizing.capacity import Capacity
from stretto.sizing.load import Unit
from stretto.sizing.objectives import Objective, shown_s
from stretto.sizing.servers import Server
from stretto.sizing.study import Study, Trial, shown_amount, shown_load
from stretto.sizing.traffic import Traffic
from stretto.sizing.trial import TrialOutcome

UNITS: Mapping[Unit, str] = {"sessions": "sessions", "per_s": "jobs a second"}


def check_possible(traffic: Traffic, objectives: Sequence[Objective]) -> None:
    """Check that pauses in the traffic leave time for jobs.

    Raises:
        UserError: an objective cannot be met, however fast servers are.
    """
    for one in objectives:
        if (
            one.time == "job"
            and (least_s := one.value_s([job.pauses_s for job in traffic.jobs])) > one.limit_s
        ):
            raise UserError(
                f"no fleet meets {one}: the pauses in {traffic.source} alone take {shown_s(least_s)}, "
                f"{least_s / one.limit_s:.2g} times the limit"
            )


def sentence(answer: Answer) -> str:
    """Return the answer in one sentence."""
    within = ", ".join(map(str, answer.objectives))
    usable = [one for one in answer.alone if not one.serves_nothing]
    if answer.alone and not usable:
        parts = [_missed(one) for one in answer.alone]
        return f"no fleet meets {within}: {'; '.join(parts)}"
    if answer.wanted is None or answer.best is not None:
        served = answer.best or max(usable, key=_worth, default=None)
        return (
            "no capacity is known yet"
            if served is None
            else f"{_serves(served)} within {within}{_breaks(served)}"
        )
    wanted, fleets = shown_load(answer.wanted), answer.fleets
    if fleets.best is not None:
        verb = "serves" if fleets.best[0].num_servers == 1 else "serve"
        return f"{fleets.best[0].name} {verb} {wanted} within {within}"
    if not fleets.is_over:
        return f"the fleet for {wanted} is not known yet"
    least = "; ".join(f"{one.fleet.name} serves {interval(one.capacity)}" for one in usable)
    nearest = "" if fleets.nearest is None else f"{_missed_by(fleets.nearest)}; "
    return f"no fleet of up to {MOST_SERVERS} servers serves {wanted} within {within}: {nearest}{least}"


def tried(study: Study) -> Iterator[str]:
    """Yield a line for each fleet: the largest load within the objectives so far, and the least beyond."""
    for fleet in dict.fromkeys(fleet for fleet, _, _ in study.outcomes):
        runs = [(load, one) for (other, load, _), one in study.outcomes.items() if other == fleet]
        met = [load for load, one in runs if not one.missed(study.objectives)]
        missed = [load for load, one in runs if one.missed(study.objectives)]
        parts = (
            [f"at {shown_load(max(met, key=lambda load: load.amount))} within the objectives"] if met else []
        )
        if missed:
            parts.append(f"at {shown_load(min(missed, key=lambda load: load.amount))} beyond them")
        yield f"{fleet.name}, so far: {', '.join(parts)}"


def so_far(answer: Answer) -> str:
    """Return how far the search has come, in a few words."""
    if answer.best is not None or not answer.fleets.best:
        return ""
    fleet, price = answer.fleets.best
    left = "" if answer.fleets.num_left is None else f", {answer.fleets.num_left} cheaper ones left"
    return f"best so far {fleet.name}{'' if price is None else f' for {price:.2f} an hour'}{left}"


def not_searched(answer: Answer) -> str:
    """Return what the search for the cheapest fleet has left out; an empty text if nothing."""
    fleets = answer.fleets
    if answer.wanted is None or not answer.alone or (fleets.is_over and not fleets.num_left):
        return ""
    if fleets.num_left is None:
        return "the search for cheaper fleets has not ended" if fleets.best else ""
    if not fleets.num_left:
        return ""
    return (
        f"{fleets.num_left} mixtures that are cheaper were not tried; their servers add up to at most "
        f"{fleets.most_share:.0%} of the load"
    )


def _worth(served: ServedLoad) -> float:
    """Return what the money for a server buys; without prices, what the server does."""
    return served.capacity.middle / (served.price or 1.0)


def _serves(served: ServedLoad) -> str:
    verb = "serves" if served.fleet.num_servers == 1 else "serve"
    return f"{served.fleet.name} {verb} {interval(served.capacity)}"


def _breaks(served: ServedLoad) -> str:
    if served.broken is None:
        return ""
    return f"; at {shown_load(served.broken.load)} it breaks: {broken_text(served.broken)}"


def _missed(served: ServedLoad) -> str:
    if served.broken is None:
        return f"{served.fleet.name} misses it in most draws"
    return _missed_by(served.broken)


def _missed_by(broken: Break) -> str:
    parts = [
        f"{one} ({shown_s(value_s)}"
        + (")" if math.isinf(value_s) else f", {value_s / one.limit_s:.2g} times the limit)")
        for one, value_s in broken.missed
    ]
    return f"{broken.fleet.name} at {shown_load(broken.load)} misses {' and '.join(parts)}"


def broken_text(broken: Break) -> str:
    """Return what is missed, and by how much."""
    objective, value_s = broken.missed[0]
    return f"{objective.label} {shown_s(value_s)}"


def interval(capacity: Capacity) -> str:
    """Return a capacity with its interval over the draws."""
    unit = UNITS[capacity.grid.unit]
    return f"{shown_amount(capacity.middle)} {unit} ({spread(capacity)})"


def spread(capacity: Capacity) -> str:
    """Return the smallest and the largest capacity over the draws."""
    return f"{shown_amount(capacity.low)} to {shown_amount(capacity.high)}"


def change_text(what_if: WhatIf) -> str:
    """Return what a change would do, in words."""
    shares = what_if.shares
    if not shares:
        return what_if.reason
    mean = f"{fmean(shares) - 1:+.0%}"
    return mean if len(shares) == 1 else f"{mean} ({min(shares) - 1:+.0%} to {max(shares) - 1:+.0%})"


def notes(study: Study, answer: Answer, servers: Sequence[Server]) -> Iterator[str]:
    """Yield what the answer rests on."""
    traffic = study.traffic
    if left := not_searched(answer):
        yield left
    estimated = [server for server in servers if not server.is_measured]
    if estimated:
        labels = ", ".join(server.label for server in estimated)
        yield f"steps of {estimated[0].model.name} on {labels}: estimate, never measured"
    if traffic.num_left_out:
        num_all = traffic.num_left_out + len(traffic.jobs)
        yield f"{traffic.num_left_out} of {num_all} jobs are left out, as their prompts do not fit the model"
    if study.unit == "per_s":
        how = "at the recorded gaps" if traffic.gaps else "at random"
        yield (
            f"jobs arrive {how}; the record has {traffic.per_s:.3g} a second"
            if traffic.per_s
            else f"jobs arrive {how}"
        )


def as_data(
    study: Study, answer: Answer, servers: Sequence[Server], *, is_whole: bool
) -> Mapping[str, object]:
    """Return the answer as plain data.

    Args:
        is_whole: whether nothing is missing that was asked for.
    """
    return {
        "answer": sentence(answer),
        "is_whole": is_whole,
        "unit": study.unit,
        "objectives": [str(one) for one in answer.objectives],
        "wanted": None if answer.wanted is None else answer.wanted.amount,
        "servers": [_served_data(one) for one in answer.alone],
        "fewest": [{"fleet": fleet.name, "price_per_h": price} for fleet, price in answer.fleets.fewest],
        "cheapest": None if answer.fleets.best is None else answer.fleets.best[0].name,
        "cheaper_not_tried": answer.fleets.num_left,
        "best": None if answer.best is None else _served_data(answer.best),
        "what_if": [
            {
                "change": one.name,
                "times": fmean(one.shares) if one.shares else None,
                "over_draws": one.shares,
                "capacity": None if one.capacity is None else one.capacity.amounts,
                "note": one.reason,
            }
            for one in answer.what_ifs
        ],
        "notes": list(notes(study, answer, servers)),
        "runs": [
            {
                "fleet": fleet.name,
                "placement": fleet.placement,
                "holds_programs": fleet.holds_programs,
                "load": load.amount,
                "draw": draw,
                "values_s": [_finite(value_s) for value_s in outcome.values_s],
                "is_cut": outcome.is_cut,
                "cached_share": outcome.cached_share,
                "requests": outcome.num_requests,
            }
            for (fleet, load, draw), outcome in sorted(study.outcomes.items(), key=_order)
        ],
    }


def _finite(value_s: float | None) -> float | None:
    """Return a number that JSON has; None for a time without end."""
    return None if value_s is None or math.isinf(value_s) else value_s


def _order(run: tuple[Trial, TrialOutcome]) -> tuple[object, ...]:
    """Return the place of a run among others: runs end in another order each time."""
    (fleet, load, draw), _ = run
    kv_tokens = [server.kv_tokens for server, _ in fleet.servers]
    return fleet.name, kv_tokens, fleet.placement, fleet.holds_programs, draw, load.amount


def _served_data(served: ServedLoad) -> Mapping[str, object]:
    broken = served.broken
    return {
        "fleet": served.fleet.name,
        "capacity": served.capacity.middle,
        "low": served.capacity.low,
        "high": served.capacity.high,
        "draws": len(served.capacity.levels),
        "price_per_h": served.price,
        "breaks_at": None if broken is None else broken.load.amount,
        "missed": None if broken is None else str(broken.missed[0][0]),
        "value_s": None if broken is None else _finite(broken.missed[0][1]),
    }
