"""What the order of service has to reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.programs.compared import ComparedPrograms, FigureOf
from benchmarks.programs.contestants import ARRIVAL, CLAIRVOYANT, OURS
from benchmarks.programs.tables import beside_over_alone, has_deadlines, missed
from benchmarks.report import Goal

_LEARNED = ("four_apps", "pareto", "bursts")
"""Mixes in which the lengths of what programs do can be learned."""
_AGENTS = ("chats_agents",)
_OVERLOAD = 1.1


def order_goals(found: Sequence[ComparedPrograms]) -> list[Goal]:
    """Return the goals of the order, as far as the scenes of a report tell."""
    goals = [
        *_share_goals(found, "mean latency", lambda figures: figures.mean_s),
        *_share_goals(found, "slowdown", lambda figures: figures.slowdown),
        _least_ratio(found, "mean latency", lambda figures: figures.mean_s, 0.99),
        _least_ratio(found, "p99", lambda figures: figures.p99_s, 0.95),
    ]
    return [*goals, *_deadline_goals([one for one in found if has_deadlines(one)]), *_tenant_goals(found)]


def _share_goals(found: Sequence[ComparedPrograms], what: str, figure: FigureOf) -> Iterator[Goal]:
    for mixes, where, goal in (
        (_LEARNED, "lengths can be learned", 0.85),
        (_AGENTS, "agents beside chats", 0.6),
    ):
        shares = [
            median(one.shares(figure)) for one in found if one.mix in mixes and one.counts_for_shares(figure)
        ]
        if shares:
            yield Goal(f"least share of the clairvoyant's gain, {what}, {where}", min(shares), goal, "higher")


def _least_ratio(found: Sequence[ComparedPrograms], what: str, figure: FigureOf, goal: float) -> Goal:
    least = min(median(one.ratios(OURS, figure)) for one in found)
    return Goal(f"least {what} of arrival order over ours", least, goal, "higher")


def _deadline_goals(found: Sequence[ComparedPrograms]) -> Iterator[Goal]:
    if not found:
        return
    more = max(missed(one, OURS) - missed(one, ARRIVAL) for one in found)
    yield Goal("most deadlines missed beyond arrival order, share of all", more, 0.0, "lower")
    for one in found:
        if one.load == _OVERLOAD:
            allowed = 1.3 * missed(one, CLAIRVOYANT)
            yield Goal(
                f"deadlines missed, {one.name}, beside 1.3 × the clairvoyant's",
                missed(one, OURS),
                allowed,
                "lower",
            )


def _tenant_goals(found: Sequence[ComparedPrograms]) -> Iterator[Goal]:
    ratios = [median(beside_over_alone(one, OURS)) for one in found if one.alone_p95_s]
    if ratios:
        yield Goal("most p95 of a tenant beside bursts, over its share alone", max(ratios), 1.3, "lower")
