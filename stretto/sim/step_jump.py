"""A batch that a simulated LLM instance is computing, perhaps many steps of it in one jump of the clock."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, islice

from stretto.costs.shape import StepShape
from stretto.llm.local_scheduler import LocalScheduler
from stretto.llm.step_batch import StepBatch


@dataclass(slots=True)
class StepJump:
    """One or more steps of the same batch of a simulated LLM, computed at once: the clock
    jumps to the end of the last one.

    The time at which each step ends is known, so that an event from outside can end the jump at the end of
    the current step.

    Attributes:
        num_repeats: number of steps; may be less than the batch's own.
        number: number by which the planned end of this jump differs from earlier, outdated plans.
        ends_s: end of each step, as far as known yet.
        factors: random factor of each step's time, if there is any.
    """

    batch: StepBatch
    shape: StepShape
    start_s: float
    num_repeats: int
    number: int = 0
    ends_s: list[float] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def num_repeats_by(self, now_s: float) -> int:
        """Return how many steps of the jump have begun before `now_s`; at least 1."""
        return bisect_left(self.ends_s, now_s) + 1

    def extend(self, times_s: list[float]) -> None:
        """Append the end times of the next steps of the jump, which take `times_s` seconds each."""
        end_s = self.ends_s[-1] if self.ends_s else self.start_s
        self.ends_s += islice(accumulate(times_s, initial=end_s), 1, None)

    def extend_unsteadily(
        self, times_s: list[float], factors: list[float], slowness: Callable[[float], float]
    ) -> None:
        """Append the end times of the next steps of the jump. A step takes its time in `times_s`, multiplied
        by its random factor and by the slowness of the instance when the step begins.
        """
        end_s = self.ends_s[-1] if self.ends_s else self.start_s
        for factor, seconds in zip(factors, times_s, strict=True):
            end_s += seconds * (factor * slowness(end_s))
            self.ends_s.append(end_s)
        self.factors += factors

    def cut(self, num_repeats: int, scheduler: LocalScheduler) -> list[float]:
        """Reduce the jump to its first `num_repeats` steps, and free the KV blocks
        that the others would have used.

        Returns the random factors of the removed steps.
        """
        self.num_repeats = num_repeats
        scheduler.shorten(self.batch, num_repeats)
        unused = self.factors[num_repeats:]
        del self.ends_s[num_repeats:], self.factors[num_repeats:]
        return unused


class Jitter:
    """A source of random factors between 1 and 1 + `jitter` for the times of steps, one for each step.

    The factors do not depend on how many steps are asked for at once.
    """

    def __init__(self, jitter: float, seed: str) -> None:
        self._jitter = jitter
        self._random = random.Random(seed)
        self._unused: list[float] = []

    def take(self, num_steps: int) -> list[float]:
        """Return random factors for the times of the next `num_steps` simulated LLM steps."""
        factors, self._unused = self._unused[:num_steps], self._unused[num_steps:]
        while len(factors) < num_steps:
            factors.append(1.0 + self._jitter * self._random.random() if self._jitter else 1.0)
        return factors

    def give_back(self, factors: list[float]) -> None:
        """Return random factors of steps that were not made after all; the next `take` hands them out
        first.
        """
        self._unused = factors + self._unused
