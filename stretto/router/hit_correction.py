"""The correction of predicted hits by those that workers report.

A key tells in whole blocks how much of a prompt was seen before. What is shared ends anywhere within a block,
and a worker's own blocks are shorter, so that it finds more than was predicted: half a block on average where
the ends are spread evenly.
"""

from __future__ import annotations

from stretto.router.messages import WorkerId, WorkerUsage

_WEIGHT = 1 / 64
"""Least weight of one answer; the first ones count as in a plain mean."""


class HitCorrection:
    """The mean number of tokens that workers find beyond the blocks that they were expected to hold.

    Args:
        block_tokens: tokens of a block of the keys. A report that is farther away from what was predicted
            than a block says that a prefix was evicted or is new, and nothing about where prefixes end.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._beyond_tokens = 0.0
        self._num_learned = 0

    def of(self, held_tokens: int, num_tokens: int) -> int:
        """Return how many tokens of a prompt of `num_tokens` a worker is expected to report as found, if it
        holds `held_tokens` in whole blocks.
        """
        return min(held_tokens + round(self._beyond_tokens), max(num_tokens - 1, held_tokens))

    def learn(self, predicted_tokens: int, reported_tokens: int) -> None:
        """Learn from one answer; without a predicted hit there is nothing to learn."""
        error = reported_tokens - predicted_tokens
        if predicted_tokens and abs(error) <= self._block_tokens:
            most = float(self._block_tokens)
            self._num_learned += 1
            weight = max(_WEIGHT, 1 / self._num_learned)
            self._beyond_tokens = min(most, max(0.0, self._beyond_tokens + weight * error))


class ReportedHits:
    """How many tokens of prompts workers have found in their caches, by what they report.

    vLLM reports cached tokens only of a hit. So once a worker has reported one, counts without cached tokens
    mean a miss.
    """

    def __init__(self) -> None:
        self._telling: set[tuple[WorkerId, bool]] = set()

    def num_cached(self, worker: WorkerId, usage: WorkerUsage) -> int | None:
        """Return how many tokens of a prompt a worker found in its cache; None if that is unknown."""
        if usage.num_cached is not None:
            self._telling.add((worker, usage.is_older_api))
            return usage.num_cached
        is_miss = usage.num_prompt is not None and (worker, usage.is_older_api) in self._telling
        return 0 if is_miss else None

    def forget(self, worker: WorkerId) -> None:
        """Forget what a worker has reported."""
        self._telling -= {(worker, True), (worker, False)}
