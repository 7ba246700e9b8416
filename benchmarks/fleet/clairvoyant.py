"""What a scheduler could win that knows the future: all arrivals, and the length of every answer.

Such a scheduler tries schedules in virtual time and keeps the best: by known policies, by arrival and true
work, and with the least true work left first, which is optimal on one machine. The schedule that is found is
possible, so at least this much could be won. The lower bound says how much could be won at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.fleet.apps import VOCABULARY
from benchmarks.fleet.schemes import LEAST_LOADED, OLDEST_QUERY, SIMULATED_BY_HAND, SIMULATED_OURS, Scheme
from benchmarks.fleet.simulated import SimulatedFleet
from benchmarks.fleet.true_work import StartedWork, TrueWorkOrder
from benchmarks.fleet.work import Asked
from stretto.sched.orders.order import OrderConfig

KNOWN_SCHEMES = (SIMULATED_BY_HAND, SIMULATED_OURS, OLDEST_QUERY, LEAST_LOADED)
"""Schemes that need no knowledge of the future."""
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


def what_could_be_won(known: Mapping[Scheme, float], clairvoyant: tuple[float, str]) -> Won:
    """Return what the best schedule wins.

    Args:
        known: mean latency of `KNOWN_SCHEMES`, which are candidates too.
        clairvoyant: mean latency and name of the best order by true work.
    """
    best_s, best = min([clairvoyant, *((mean_s, scheme.name) for scheme, mean_s in known.items())])
    return Won(known[SIMULATED_BY_HAND], known[SIMULATED_OURS], best_s, best)


def best_by_true_work(fleet: SimulatedFleet, app: str, asked: Sequence[Asked]) -> tuple[float, str]:
    """Return the least mean latency of several orders by the true work of queries, and that order's name."""
    arrival = Priorities("arrival", {one.name: one.at_s for one in asked})
    mean_s, work_s = _run(fleet, app, asked, arrival)
    found = [(mean_s, arrival.name)]
    for priorities in _by_true_work(asked, work_s):
        found.append((_run(fleet, app, asked, priorities)[0], priorities.name))
    return min(found)


def _by_true_work(asked: Sequence[Asked], work_s: Mapping[str, float]) -> Iterator[Priorities]:
    mean_s = fmean(work_s.values())
    relative = {one.name: one.at_s + 3 * work_s[one.name] / mean_s for one in asked}
    yield Priorities("arrival and true work", relative)
    yield Priorities("least true work left", work_s, 1.0)
    yield Priorities("least true work left, begun ones first", work_s, _BEGUN_FIRST)
    aged = {one.name: 0.1 * one.at_s + work_s[one.name] for one in asked}
    yield Priorities("least true work left, ageing", aged, 1.0)


def _run(
    fleet: SimulatedFleet, app: str, asked: Sequence[Asked], priorities: Priorities
) -> tuple[float, Mapping[str, float]]:
    """Return the mean latency with these priorities, and the true LLM work of each query."""
    work = StartedWork(fleet)

    def order(_: OrderConfig) -> TrueWorkOrder:
        return TrueWorkOrder(priorities.of_query, priorities.started, work)

    vocabulary = VOCABULARY.with_policy(_POLICY, order)
    ran = fleet.run(replace(SIMULATED_OURS, policy=_POLICY), app, asked, vocabulary)
    return fmean(ran.latencies_s), work.of_query
