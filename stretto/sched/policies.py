"""Batching policies: which waiting work makes the next batch.

A policy is a function of the queue (in order of arrival), the budget in units and the time; it returns
what to take. It changes nothing. An item that exceeds the whole budget is offered alone by the engine
scheduler, so a policy need not care.

Sources: Teola Algorithm 2 and §7 (its baselines PO and TO).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from stretto.engine import Engine
from stretto.sched.work import Work


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """What a policy may be tuned by.

    Attributes:
        age_limit_s: work that has waited longer goes first, oldest first (`topology_aware`,
            `critical_path`, `least_work`).
        fill_timeout_s: how long `throughput` waits for a batch to fill.
        unit_s, output_s: predicted seconds of a unit of work on the engine, and of a token that is decoded
            (`least_work`).
    """

    age_limit_s: float = 10.0
    fill_timeout_s: float = 0.005
    unit_s: float = 0.0
    output_s: float = 0.0

    @classmethod
    def of(cls, engine: Engine) -> PolicyConfig:
        """As the engine has them."""
        profile = engine.profile
        return cls(engine.age_limit_s, engine.fill_timeout_s, profile.per_unit_s, profile.per_output_s)


@dataclass(frozen=True, slots=True)
class Selection:
    """(work, number of its items) to run now; or nothing before `not_before_s`."""

    take: list[tuple[Work, int]]
    not_before_s: float | None = None


Policy: TypeAlias = Callable[[Sequence[Work], int, float, PolicyConfig], Selection]


def wanted_first(queue: Sequence[Work]) -> Sequence[Work]:
    """What somebody waits for, as long as there is any."""
    if all(work.is_wanted for work in queue):
        return queue
    return [work for work in queue if work.is_wanted] or queue


def _fill(works: Sequence[Work], budget: int, num_urgent: int = 0) -> list[tuple[Work, int]]:
    """Take in the given order, items of one primitive partly if need be, until nothing more fits.

    Nothing overtakes the first `num_urgent`: when the next of them does not fit, it waits for room.
    """
    take = []
    for place, work in enumerate(works):
        if budget <= 0:
            break
        count = work.count_within(budget)
        if count:
            take.append((work, count))
            budget -= work.units_of(work.lo, work.lo + count)
        elif place < num_urgent:
            break
    return take


def topology_aware(queue: Sequence[Work], budget: int, now_s: float, config: PolicyConfig) -> Selection:
    """Of each query, by arrival, the deepest primitives; then the next deepest, while slots are left.

    Source: Teola Algorithm 2. Differs: it goes on to lower depths instead of leaving slots idle, and
    work older than the age limit goes before everything.
    """
    return Selection(_by_rank(queue, budget, now_s - config.age_limit_s, _depth))


def critical_path(queue: Sequence[Work], budget: int, now_s: float, config: PolicyConfig) -> Selection:
    """As `topology_aware`, by predicted seconds to the end instead of edges (Teola §8 leaves it open)."""
    return Selection(_by_rank(queue, budget, now_s - config.age_limit_s, _path_s))


def least_work(queue: Sequence[Work], budget: int, now_s: float, config: PolicyConfig) -> Selection:
    """The query first of which least work waits here, in predicted seconds; of it the longest way to the end.

    On one machine the least remaining work first has the least mean latency; what a query still has to do
    elsewhere adds the same to it in any order. Nobody starves: a second of waiting counts as `_AGEING`
    seconds of work done, so that a query with L seconds of work is overtaken only by those that come within
    L / `_AGEING` seconds of it; and beyond the age limit by none. (What does not fit into the room that is
    left may be passed by any until then.)

    Source: Schrage 1968, for one machine; the ageing is ours. Where costs are not known, queries go by
    arrival and their primitives by depth.
    """
    aged, others = _by_age(queue, now_s - config.age_limit_s)
    works: dict[str, list[Work]] = {}
    for work in others:
        works.setdefault(work.query, []).append(work)

    def rank(own: Sequence[Work]) -> float:
        waiting_s = sum(_work_s(work, config) for work in own)
        return waiting_s + _AGEING * min(work.arrival_s for work in own)

    ranked = sorted(works.values(), key=rank) if len(works) > 1 else works.values()
    chosen = [work for own in ranked for work in sorted(own, key=_path_and_depth, reverse=True)]
    return Selection(_fill([*aged, *chosen], budget, num_urgent=len(aged)))


def _work_s(work: Work, config: PolicyConfig) -> float:
    """Predicted for what is left of it, as if nothing of its prompts were held; units are tokens of both."""
    num_output = (work.hi - work.lo) * work.decode.max_tokens if work.decode else 0
    num_other = max(0, work.units_of(work.lo, work.hi) - num_output)
    return config.unit_s * num_other + config.output_s * num_output


def per_invocation(queue: Sequence[Work], budget: int, now_s: float, config: PolicyConfig) -> Selection:
    """One primitive of one query at a time, first come first served (PO)."""
    return Selection(_fill(queue[:1], budget))


def throughput(queue: Sequence[Work], budget: int, now_s: float, config: PolicyConfig) -> Selection:
    """Full batches, first come first served, whatever belongs together; waits a little to fill (TO)."""
    take = _fill(queue, budget, num_urgent=len(queue))
    taken = sum(work.units_of(work.lo, work.lo + count) for work, count in take)
    due_s = queue[0].arrival_s + config.fill_timeout_s
    if taken < budget and len(take) == len(queue) and now_s < due_s:
        return Selection([], not_before_s=due_s)
    return Selection(take)


POLICIES: dict[str, Policy] = {
    "topology_aware": topology_aware,
    "per_invocation": per_invocation,
    "throughput": throughput,
    "critical_path": critical_path,
    "least_work": least_work,
}

_AGEING = 0.3
"""Seconds of work that a second of waiting makes up for."""


def _depth(work: Work) -> float:
    return work.node.depth


def _path_s(work: Work) -> float:
    return work.node.path_s


def _path_and_depth(work: Work) -> tuple[float, int]:
    return work.node.path_s, work.node.depth


def _by_rank(
    queue: Sequence[Work], budget: int, aged_before_s: float, rank: Callable[[Work], float]
) -> list[tuple[Work, int]]:
    aged, others = _by_age(queue, aged_before_s)
    return _fill([*aged, *_rounds(others, rank)], budget, num_urgent=len(aged))


def _by_age(queue: Sequence[Work], aged_before_s: float) -> tuple[list[Work], list[Work]]:
    """What has waited too long, and the rest."""
    aged = [work for work in queue if work.arrival_s < aged_before_s]
    return aged, [work for work in queue if work.arrival_s >= aged_before_s]


def _rounds(queue: Sequence[Work], rank: Callable[[Work], float]) -> list[Work]:
    """Round 1: the highest ranked of each query, queries by earliest arrival; round 2: the next; …"""
    if len(queue) < 2:
        return list(queue)
    buckets: dict[str, list[Work]] = {}
    for work in queue:
        buckets.setdefault(work.query, []).append(work)
    if len(buckets) == 1:
        return sorted(queue, key=rank, reverse=True)
    ranked = [
        [list(level) for _, level in groupby(sorted(bucket, key=rank, reverse=True), key=rank)]
        for bucket in buckets.values()
    ]
    longest = max(map(len, ranked))
    return [
        work for place in range(longest) for levels in ranked if place < len(levels) for work in levels[place]
    ]
