"""What a scheduler could win that knows the future: all arrivals, and the length of every answer.

Such a scheduler tries schedules in virtual time and keeps the best. Each query has a priority. LLM requests
are served by their query's priority, and within a query the longest way to the end goes first. The search
begins with known policies, and with the least work first by true lengths. Then it gives single queries other
priorities, and keeps what lowers the mean latency. The schedule that is found is possible, so at least this
much could be won. The lower bound says how much could be won at most.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.fleet.apps import VOCABULARY
from benchmarks.fleet.measures import Ran
from benchmarks.fleet.schemes import SIMULATED_BY_HAND, SIMULATED_OURS, Scheme
from benchmarks.fleet.simulated import SimulatedFleet
from benchmarks.fleet.work import Asked
from stretto.sched.orders.order import Fits, Hold, OrderConfig, Rank, Take, first_that_fits
from stretto.sched.request import Entry
from stretto.sim.query_bound import Bound
from stretto.sorted_queue import SortedQueue
from stretto.vocabulary import Vocabulary

_POLICY = "known_future"
_LEAST = 0.001
"""Share of the mean latency below which a gain counts as none."""


class GivenPriorities:
    """An order by the priorities of queries, the smallest first; within a query, the longest way first."""

    def __init__(self, priorities: Mapping[str, float]) -> None:
        self._priorities = priorities
        self._waiting = SortedQueue[Entry]()

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self._waiting.add(self._key(entry), entry)

    def remove(self, entry: Entry) -> None:
        """Remove an entry that is no longer wanted."""
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose the first entry that fits."""
        return first_that_fits(self._waiting, fits)

    def taken(self, entry: Entry, num_items: int) -> None:
        """Count items as no longer waiting."""
        entry.lo += num_items
        if entry.lo == entry.hi:
            self._waiting.remove(self._key(entry))

    def started(self, entry: Entry, lo: int, hi: int) -> None:
        """Do nothing: places depend on the query alone."""

    def rank(self, entry: Entry) -> Rank:
        """Return the place of an entry."""
        return self._key(entry)[:2]

    def _key(self, entry: Entry) -> tuple[float, float, int, int]:
        priority = self._priorities.get(entry.query, 0.0)
        return priority, -entry.path_s, -entry.request.node.depth, entry.number


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


def what_could_be_won(
    fleet: SimulatedFleet, app: str, asked: Sequence[Asked], found: Sequence[Bound], num_tries: int
) -> Won:
    """Search for the best schedule of queries.

    Args:
        found: lower bounds of the queries, which have the true work of each.
        num_tries: schedules to try after the known ones.
    """
    by_hand = _mean_s(fleet.run(SIMULATED_BY_HAND, app, asked))
    ours = _mean_s(fleet.run(SIMULATED_OURS, app, asked))
    best_s, best = min((by_hand, "by hand"), (ours, "ours"))
    for scheme in _known_schemes():
        mean_s = _mean_s(fleet.run(scheme, app, asked))
        best_s, best = min((best_s, best), (mean_s, scheme.name))
    chosen_s, chosen = best_s, None
    for name, priorities in _first_priorities(asked, found):
        mean_s = _with(fleet, app, asked, priorities)
        if chosen is None or mean_s < chosen_s:
            chosen_s, chosen = mean_s, priorities
        best_s, best = min((best_s, best), (mean_s, name))
    assert chosen is not None
    chance = random.Random(len(asked))
    for _ in range(num_tries):
        tried = _changed(chosen, chance)
        mean_s = _with(fleet, app, asked, tried)
        if mean_s < chosen_s:
            chosen_s, chosen = mean_s, tried
    best_s, best = min((best_s, best), (chosen_s, "searched priorities"))
    return Won(by_hand, ours, best_s, best)


def _known_schemes() -> Iterator[Scheme]:
    for policy in ("throughput", "topology_aware"):
        yield replace(SIMULATED_OURS, name=policy, policy=policy)
    yield replace(SIMULATED_OURS, name="least_loaded", placement="least_loaded")


def _first_priorities(
    asked: Sequence[Asked], found: Sequence[Bound]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield priorities by arrival, and by arrival and true work: a second of work counts as many seconds."""
    work_s = [max(load.work_s for load in bound.loads.values()) for bound in found]
    mean_s = fmean(work_s)
    for weight in (0.0, 1.0, 3.0):
        yield (
            f"arrival + {weight:g} × relative work",
            {one.name: one.at_s + weight * own_s / mean_s for one, own_s in zip(asked, work_s, strict=True)},
        )


def _changed(priorities: Mapping[str, float], chance: random.Random) -> dict[str, float]:
    """Return priorities in which a few queries have been moved."""
    span = max(priorities.values()) - min(priorities.values()) or 1.0
    moved = chance.sample(sorted(priorities), max(1, len(priorities) // 10))
    return {
        **priorities,
        **{name: priorities[name] + chance.gauss(0.0, 0.15 * span) for name in moved},
    }


def _with(fleet: SimulatedFleet, app: str, asked: Sequence[Asked], priorities: Mapping[str, float]) -> float:
    def order(_: OrderConfig) -> GivenPriorities:
        return GivenPriorities(priorities)

    vocabulary: Vocabulary = VOCABULARY.with_policy(_POLICY, order)
    return _mean_s(fleet.run(replace(SIMULATED_OURS, policy=_POLICY), app, asked, vocabulary))


def _mean_s(ran: Ran) -> float:
    return fmean(ran.latencies_s)
