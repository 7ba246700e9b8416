"""Capacities of fleets under one question: traffic, objectives and draws. No run is made twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from stretto.sizing.capacity import Capacity, Levels, highest_level
from stretto.sizing.load import Load, Unit
from stretto.sizing.objectives import Objective
from stretto.sizing.traffic import Traffic
from stretto.sizing.trial import Fleet, Outcome, run

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
    """

    traffic: Traffic
    objectives: tuple[Objective, ...]
    unit: Unit
    draws: int
    num_samples: int
    seed: int = 0
    note: Callable[[str], None] = lambda _: None
    outcomes: dict[tuple[Fleet, Load, int], Outcome] = field(default_factory=dict)

    @property
    def grid(self) -> Levels:
        """The loads that are tried."""
        return Levels(self.unit)

    def outcome(self, fleet: Fleet, load: Load, draw: int) -> Outcome:
        """Return what a run of a load measures."""
        key = fleet, load, draw
        if key not in self.outcomes:
            self.note(f"{fleet.name}: {shown_load(load)}, draw {draw + 1}")
            seed = self.seed * 1000 + draw
            self.outcomes[key] = run(fleet, self.traffic, load, self.objectives, seed, self.num_samples)
        return self.outcomes[key]

    def meets(self, fleet: Fleet, load: Load, draw: int) -> bool:
        """Return whether a fleet meets the objectives under a load."""
        return self.outcome(fleet, load, draw).missed(self.objectives) is None

    def serves(self, fleet: Fleet, load: Load) -> bool:
        """Return whether a fleet meets the objectives under a load in all draws."""
        return all(self.meets(fleet, load, draw) for draw in range(self.draws))

    def capacities(self, fleet: Fleet, guesses: Sequence[int | None]) -> Iterator[Capacity]:
        """Yield the capacity of a fleet by the first draw, by the first two, and so on.

        Args:
            guesses: likely level by draw; the last one stands for all further draws, and is corrected by the
                draws before where there is one alone.
        """
        levels: list[int | None] = []
        for draw in range(self.draws):
            guess = guesses[min(draw, len(guesses) - 1)]
            if len(guesses) == 1 and levels:
                guess = levels[-1] if levels[-1] is not None else guess
            levels.append(self._level(fleet, draw, guess or self.lowest))
            yield Capacity(self.grid, tuple(levels))

    @property
    def lowest(self) -> int:
        """The lowest level that is tried: one session, or a tenth of a job at once."""
        if self.unit == "sessions":
            return 0
        return self.grid.at_most(0.1 / self.traffic.mean_s)

    def _level(self, fleet: Fleet, draw: int, guess: int) -> int | None:
        meets = partial(self._meets_level, fleet, draw)
        return highest_level(meets, guess, self.lowest, self.grid.highest)

    def _meets_level(self, fleet: Fleet, draw: int, level: int) -> bool:
        return self.meets(fleet, self.grid.load(level), draw)


def shown_amount(amount: float) -> str:
    """Return the amount of a load with the digits that mean something."""
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"


def shown_load(load: Load) -> str:
    """Return a load in words."""
    return f"{shown_amount(load.amount)} {'sessions' if load.unit == 'sessions' else 'a second'}"
