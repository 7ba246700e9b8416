"""A batch of a simulated LLM instance that is being computed, perhaps many times over in one jump."""

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
    """Each repeat ends at one of `ends_s`, as far as they are known yet.

    `num_repeats` may be less than the batch's. `factors` are the jitter of each repeat, if there is any;
    `number` tells this landing from earlier ones that were announced.
    """

    batch: StepBatch
    shape: StepShape
    start_s: float
    num_repeats: int
    number: int = 0
    ends_s: list[float] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def num_repeats_by(self, now_s: float) -> int:
        """As many as have begun before `now_s`, at least one."""
        return bisect_left(self.ends_s, now_s) + 1

    def extend(self, times_s: list[float]) -> None:
        """The next repeats take so long."""
        end_s = self.ends_s[-1] if self.ends_s else self.start_s
        self.ends_s += islice(accumulate(times_s, initial=end_s), 1, None)

    def extend_unsteadily(
        self, times_s: list[float], factors: list[float], slowness: Callable[[float], float]
    ) -> None:
        """The same with a factor for each, and another one that depends on when it begins."""
        end_s = self.ends_s[-1] if self.ends_s else self.start_s
        for factor, seconds in zip(factors, times_s, strict=True):
            end_s += seconds * (factor * slowness(end_s))
            self.ends_s.append(end_s)
        self.factors += factors

    def cut(self, num_repeats: int, scheduler: LocalScheduler) -> list[float]:
        """No more than so many repeats; the blocks for the others go back. Returns the others' jitter."""
        self.num_repeats = num_repeats
        scheduler.shorten(self.batch, num_repeats)
        unused = self.factors[num_repeats:]
        del self.ends_s[num_repeats:], self.factors[num_repeats:]
        return unused


class Jitter:
    """Factors between 1 and 1 + `jitter`: one for each step, however many are taken at once."""

    def __init__(self, jitter: float, seed: str) -> None:
        self._jitter = jitter
        self._random = random.Random(seed)
        self._unused: list[float] = []

    def take(self, num_steps: int) -> list[float]:
        """Of the next steps."""
        factors, self._unused = self._unused[:num_steps], self._unused[num_steps:]
        while len(factors) < num_steps:
            factors.append(1.0 + self._jitter * self._random.random() if self._jitter else 1.0)
        return factors

    def give_back(self, factors: list[float]) -> None:
        """Those of steps that were not taken are the next ones."""
        self._unused = factors + self._unused
