"""What a scheduler could win that knows the future: all arrivals, and the length of every answer.

Such a scheduler tries schedules in virtual time and keeps the best. It begins with known policies and with
orders by true lengths: by arrival and true work, and the least true work left first, which is optimal on one
machine. Then it gives single queries other priorities, and keeps what lowers the mean latency. The schedule
that is found is possible, so at least this much could be won. The lower bound says how much could be won at
most.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.fleet.apps import VOCABULARY
from benchmarks.fleet.measures import Ran
from benchmarks.fleet.schemes import OLDEST_QUERY, SIMULATED_BY_HAND, SIMULATED_OURS
from benchmarks.fleet.simulated import SimulatedFleet
from benchmarks.fleet.true_work import StartedWork, TrueWorkOrder
from benchmarks.fleet.work import Asked
from stretto.sched.orders.order import OrderConfig

_POLICY = "known_future"
_LEAST = 0.001
"""Share of the mean latency below which a gain counts as none."""
_BEGUN_FIRST = 3.0
"""Weight of started work with which queries that have begun go before nearly all that have not."""


@dataclass(frozen=True, slots=True)
class Won:
    """Mean latencies in emulated seconds of the same queries, in virtual time.

    Attributes:
        clairvoyant_s: mean latency of the best schedule that was found with knowledge of the future.
        best: what that schedule is, in words.
    """

    by_hand_s: float
    ours_s: float
    clairvoyant_s: float
    best: str

    @property
    def could_be_won(self) -> bool:
        """Whether any schedule that was found is better than the hand-written program."""
        return self.by_hand_s - self.clairvoyant_s > _LEAST * self.by_hand_s

    @property
    def share(self) -> float:
        """Share of what could be won that ours wins; 1 if nothing could be won."""
        possible_s = self.by_hand_s - self.clairvoyant_s
        return (self.by_hand_s - self.ours_s) / possible_s if self.could_be_won else 1.0


@dataclass(frozen=True, slots=True)
class Priorities:
    """An order of queries, by numbers that are known before they come; the smallest goes first.

    Attributes:
        of_query: number of each query.
        started: how much of the seconds of its LLM work that has started is subtracted from the number.
    """

    name: str
    of_query: Mapping[str, float]
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class _Search:
    fleet: SimulatedFleet
    app: str
    asked: Sequence[Asked]

    def mean_s(self, priorities: Priorities) -> float:
        return self.run(priorities)[0]

    def run(self, priorities: Priorities) -> tuple[float, Mapping[str, float]]:
        """Return the mean latency with these priorities, and the true LLM work of each query."""
        work = StartedWork(self.fleet)

        def order(_: OrderConfig) -> TrueWorkOrder:
            return TrueWorkOrder(priorities.of_query, priorities.started, work)

        vocabulary = VOCABULARY.with_policy(_POLICY, order)
        scheme = replace(SIMULATED_OURS, policy=_POLICY)
        ran = self.fleet.run(scheme, self.app, self.asked, vocabulary)
        return _mean_s(ran), work.of_query


def what_could_be_won(fleet: SimulatedFleet, app: str, asked: Sequence[Asked], num_tries: int) -> Won:
    """Search for the best schedule of queries.

    Args:
        num_tries: schedules to try after the known ones.
    """
    by_hand = _mean_s(fleet.run(SIMULATED_BY_HAND, app, asked))
    ours = _mean_s(fleet.run(SIMULATED_OURS, app, asked))
    best_s, best = min((by_hand, "by hand"), (ours, "ours"))
    for scheme in (OLDEST_QUERY, replace(SIMULATED_OURS, name="least_loaded", placement="least_loaded")):
        best_s, best = min((best_s, best), (_mean_s(fleet.run(scheme, app, asked)), scheme.name))
    search = _Search(fleet, app, asked)
    chosen = Priorities("arrival", {one.name: one.at_s for one in asked})
    chosen_s, work_s = search.run(chosen)
    for tried in _by_true_work(asked, work_s):
        mean_s = search.mean_s(tried)
        if mean_s < chosen_s:
            chosen_s, chosen = mean_s, tried
    best_s, best = min((best_s, best), (chosen_s, chosen.name))
    chance = random.Random(len(asked))
    for _ in range(num_tries):
        tried = _changed(chosen, chance)
        mean_s = search.mean_s(tried)
        if mean_s < chosen_s:
            chosen_s, chosen = mean_s, tried
    best_s, best = min((best_s, best), (chosen_s, chosen.name))
    return Won(by_hand, ours, best_s, best)


def _by_true_work(asked: Sequence[Asked], work_s: Mapping[str, float]) -> Iterator[Priorities]:
    """Yield orders by arrival and true work, and by the true work that is left."""
    mean_s = fmean(work_s.values())
    relative = {one.name: one.at_s + 3 * work_s[one.name] / mean_s for one in asked}
    yield Priorities("arrival + 3 × relative work", relative)
    yield Priorities("least true work left", work_s, 1.0)
    yield Priorities("least true work left, begun ones first", work_s, _BEGUN_FIRST)
    aged = {one.name: 0.1 * one.at_s + work_s[one.name] for one in asked}
    yield Priorities("least true work left, ageing", aged, 1.0)


def _changed(priorities: Priorities, chance: random.Random) -> Priorities:
    """Return priorities in which a few queries have been moved."""
    before = priorities.of_query
    span = max(before.values()) - min(before.values()) or 1.0
    moved = chance.sample(sorted(before), max(1, len(before) // 10))
    changed = {**before, **{name: before[name] + chance.gauss(0.0, 0.15 * span) for name in moved}}
    return replace(priorities, name="searched priorities", of_query=changed)


def _mean_s(ran: Ran) -> float:
    return fmean(ran.latencies_s)
