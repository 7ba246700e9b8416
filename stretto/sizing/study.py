"""Capacities of fleets under one question: traffic, objectives and draws. No run is made twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import TypeAlias

from stretto.sizing.capacity import Capacity, Levels, capacity_level
from stretto.sizing.load import Load, Unit
from stretto.sizing.objectives import Objective
from stretto.sizing.traffic import Traffic
from stretto.sizing.trial import TrialOutcome, TriedFleet, run

Trial: TypeAlias = tuple[TriedFleet, Load, int]
"""A run: a load on a fleet, and the number of the draw."""
_ABOVE = 20
_FEWEST, _MOST = 300, 1500


def samples_for(objectives: Sequence[Objective]) -> int:
    """Return how many requests a run measures: so many that about 20 are above each limit, if it is just
    met.
    """
    wanted = [_FEWEST if one.share_above is None else _ABOVE / one.share_above for one in objectives]
    return min(_MOST, max(_FEWEST, *map(round, wanted)))


@dataclass(frozen=True)
class Study:
    """What is asked of fleets, and the runs that were made.

    Attributes:
        draws: number of draws of jobs and arrivals.
        num_samples: requests that a run measures, about.
        note: called with each run, as a text.
        outcomes: what was measured by the runs that were asked for.
        submit: function that makes a run in another process; by default, this one makes them all.
        num_parallel: number of runs that are made at once.
        begun: runs that were begun.
    """

    traffic: Traffic
    objectives: tuple[Objective, ...]
    unit: Unit
    draws: int
    num_samples: int
    seed: int = 0
    note: Callable[[str], None] = lambda _: None
    outcomes: dict[Trial, TrialOutcome] = field(default_factory=dict)
    submit: Callable[[Trial], Future[TrialOutcome]] | None = None
    num_parallel: int = 1
    begun: dict[Trial, Future[TrialOutcome]] = field(default_factory=dict)

    @property
    def grid(self) -> Levels:
        """The loads that are tried."""
        return Levels(self.unit)

    def run(self, trial: Trial) -> TrialOutcome:
        """Make a run."""
        fleet, load, draw = trial
        return run(fleet, self.traffic, load, self.objectives, self.seed_of(draw), self.num_samples)

    def seed_of(self, draw: int) -> int:
        """Return the seed of a draw."""
        return self.seed * 1000 + draw

    def outcome(self, fleet: TriedFleet, load: Load, draw: int) -> TrialOutcome:
        """Return what a run of a load measures."""
        trial = fleet, load, draw
        if trial not in self.outcomes:
            self.outcomes[trial] = self._begun(trial).result()
        return self.outcomes[trial]

    def meets(self, fleet: TriedFleet, load: Load, draw: int) -> bool:
        """Return whether a fleet meets the objectives under a load."""
        return not self.outcome(fleet, load, draw).missed(self.objectives)

    def serves(self, fleet: TriedFleet, load: Load) -> bool:
        """Return whether a fleet meets the objectives under a load in all draws. Those come first in which
        other fleets missed them.
        """
        missed = Counter(draw for (_, _, draw), one in self.outcomes.items() if one.missed(self.objectives))
        draws = sorted(range(self.draws), key=lambda draw: -missed[draw])
        for place, draw in enumerate(draws):
            for ahead in draws[place : place + self.num_parallel]:
                self._begun((fleet, load, ahead))
            if not self.meets(fleet, load, draw):
                return False
        return True

    def capacities(self, fleet: TriedFleet, guesses: Sequence[int | None]) -> Iterator[Capacity]:
        """Yield the capacity of a fleet by the first draw, by the first two, and so on.

        Args:
            guesses: likely level by draw. All others move as far as the first one was wrong.
        """
        yield from (capacity for _, capacity in self.capacities_of({fleet: guesses}))

    def capacities_of(
        self, guesses: Mapping[TriedFleet, Sequence[int | None]]
    ) -> Iterator[tuple[TriedFleet, Capacity]]:
        """Yield the capacities of fleets as `capacities` does, in the order in which they are found."""
        likely = {
            fleet: [self.lowest if guess is None else guess for guess in of] for fleet, of in guesses.items()
        }
        found: dict[TriedFleet, dict[int, int | None]] = {fleet: {} for fleet in likely}
        known: dict[TriedFleet, list[int | None]] = {fleet: [] for fleet in likely}
        for fleet, draw, level in self._levels(likely):
            levels = known[fleet]
            found[fleet][draw] = level
            while len(levels) in found[fleet]:
                levels.append(found[fleet][len(levels)])
                yield fleet, Capacity(self.grid, tuple(levels))

    @property
    def lowest(self) -> int:
        """The lowest level that is tried: one session, or a tenth of a job at once."""
        if self.unit == "sessions":
            return 0
        return self.grid.at_most(0.1 / self.traffic.mean_s)

    def _levels(
        self, likely: Mapping[TriedFleet, Sequence[int]]
    ) -> Iterator[tuple[TriedFleet, int, int | None]]:
        """Yield each fleet and draw with its highest level, in the order in which they are found. The other
        draws of a fleet follow its first one.
        """
        left = [(fleet, 0, levels[0]) for fleet, levels in likely.items()]
        searches: dict[tuple[TriedFleet, int], Generator[int, float, int | None]] = {}
        tried: dict[tuple[TriedFleet, int], Load] = {}
        while left or tried:
            while left and len(tried) < self.num_parallel:
                fleet, draw, guess = left.pop(0)
                searches[fleet, draw] = search = capacity_level(guess, self.lowest, self.grid.highest)
                tried[fleet, draw] = self.grid.load(next(search))
            begun = {key: self._begun((key[0], load, key[1])) for key, load in tried.items()}
            wait(begun.values(), return_when=FIRST_COMPLETED)
            for fleet, draw in [key for key, future in begun.items() if future.done()]:
                try:
                    outcome = self.outcome(fleet, tried[fleet, draw], draw)
                    level = searches[fleet, draw].send(outcome.times_limit(self.objectives))
                    tried[fleet, draw] = self.grid.load(level)
                except StopIteration as found:
                    del tried[fleet, draw]
                    levels = likely[fleet]
                    if draw == 0:
                        moved = 0 if found.value is None else found.value - levels[0]
                        others = range(1, self.draws)
                        left[:0] = [(fleet, one, max(self.lowest, levels[one] + moved)) for one in others]
                    yield fleet, draw, found.value

    def _begun(self, trial: Trial) -> Future[TrialOutcome]:
        """Return the future outcome of a run, which begins now unless it has begun before."""
        if trial not in self.begun:
            fleet, load, draw = trial
            self.note(f"{fleet.name}: {shown_load(load)}, draw {draw + 1}")
            if self.submit is None:
                made: Future[TrialOutcome] = Future()
                made.set_result(self.run(trial))
                self.begun[trial] = made
            else:
                self.begun[trial] = self.submit(trial)
        return self.begun[trial]


def shown_amount(amount: float) -> str:
    """Return the amount of a load with the digits that mean something."""
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"


def shown_load(load: Load) -> str:
    """Return a load in words."""
    return f"{shown_amount(load.amount)} {'sessions' if load.unit == 'sessions' else 'a second'}"
