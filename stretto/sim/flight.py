"""A batch of a simulated LLM instance that is being computed, perhaps many times over in one jump."""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, field

from stretto.costs.shape import StepShape
from stretto.llm.local_scheduler import LocalScheduler
from stretto.llm.step_batch import StepBatch


@dataclass(slots=True)
class Flight:
    """Each repeat ends at one of `ends_s`, as far as they are known yet.

    `num_repeats` may be less than the batch's. `factors` are the jitter of each repeat; `number` tells this
    landing from earlier ones that were announced.
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

    def cut(self, num_repeats: int, scheduler: LocalScheduler) -> list[float]:
        """No more than so many repeats; the blocks for the others go back. Returns the others' jitter."""
        self.num_repeats = num_repeats
        size = scheduler.config.block_tokens
        for piece in self.batch.slices:
            sequence = piece.sequence
            num_blocks = -(-(len(sequence.tokens) + num_repeats - 1) // size)
            if len(sequence.blocks) > num_blocks:
                scheduler.cache.release(sequence.blocks[num_blocks:])
                del sequence.blocks[num_blocks:]
        unused = self.factors[num_repeats:]
        del self.ends_s[num_repeats:], self.factors[num_repeats:]
        return unused


class Jitter:
    """Factors between 1 and 1 + `jitter`: one for each step, however many are taken at once."""

    def __init__(self, jitter: float, seed: str) -> None:
        self._jitter = jitter
        self._random = random.Random(seed)
        self._unused: list[float] = []

    def next(self) -> float:
        """Of the next step."""
        if self._unused:
            return self._unused.pop(0)
        return 1.0 + self._jitter * self._random.random() if self._jitter else 1.0

    def give_back(self, factors: list[float]) -> None:
        """Those of steps that were not taken are the next ones."""
        self._unused = factors + self._unused
