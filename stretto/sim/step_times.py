"""The times of simulated LLM steps: what a step's cost depends on, the times of many steps at once, and the
simplest cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost
from stretto.llm.shared_prefixes import group_by_prefix
from stretto.llm.step_batch import StepBatch
from stretto.model.profile import Profile

LEAST_SHARED_TOKENS = 128
"""Least length in tokens of a prefix that decodes read together."""


def batch_shape(batch: StepBatch) -> StepShape:
    """Return the `StepShape` of the first step of a batch: the counts (of prefills, decodes, tokens) on which
    the predicted time of an LLM step depends.

    Later steps of the batch repeat it with longer contexts.
    """
    prefills = prefill_tokens = longest_prefill = pairs = decodes = context = longest = 0
    for sequence, start, num_tokens, _ in batch.slices:
        if num_tokens == 1 and start >= sequence.num_prompt_tokens:
            decodes += 1
            context += start
            if start > longest:
                longest = start
        else:
            prefills += 1
            prefill_tokens += num_tokens
            longest_prefill = max(longest_prefill, num_tokens)
            pairs += num_tokens * start + num_tokens * (num_tokens + 1) // 2
    if decodes:
        longest += 1
    return StepShape(prefills, prefill_tokens, longest_prefill, pairs, decodes, context + decodes, longest)


def reading_shared_once(shape: StepShape, batch: StepBatch, block_tokens: int) -> StepShape:
    """Return the shape of a batch's first step if attention reads what several decodes have in common once.

    Prefixes of less than `LEAST_SHARED_TOKENS` are read once for each decode, as in the in-process engine.

    Source: Parrot §5.3 and §7 (attention kernel).
    """
    decodes = [
        sequence.blocks[: start // block_tokens + 1]
        for sequence, start, num_tokens, _ in batch.slices
        if num_tokens == 1 and start >= sequence.num_prompt_tokens
    ]
    if len(decodes) < 2:
        return shape
    groups = group_by_prefix(decodes, -(-LEAST_SHARED_TOKENS // block_tokens))
    num_saved = block_tokens * sum(group.num_saved for group in groups)
    return shape._replace(context_tokens=shape.context_tokens - num_saved)


def step_times_s(cost: StepCost, shape: StepShape, first: int, num_steps: int) -> list[float]:
    """Return the predicted seconds of `num_steps` consecutive steps of an LLM batch, from step number `first`
    on, each in whole nanoseconds.

    `shape` has the counts on which the cost of the batch's first step depends. Costs grow evenly with the
    context for long stretches; within one, three steps determine those between. Rounded, these are the times
    that each step by itself would give.
    """
    if num_steps < 5:
        shapes = (shape.after(repeat) if repeat else shape for repeat in range(first, first + num_steps))
        return [round(cost.step_s(one), 9) for one in shapes]
    last = num_steps - 1
    middle = last // 2
    begin_s, middle_s, end_s = (
        cost.step_s(shape.after(first + repeat) if first + repeat else shape) for repeat in (0, middle, last)
    )
    growth_s = (end_s - begin_s) / last
    if abs(begin_s + growth_s * middle - middle_s) > 1e-13:
        half = step_times_s(cost, shape, first, middle)
        return half + step_times_s(cost, shape, first + middle, num_steps - middle)
    rounded_ns, growth_ns = begin_s * 1e9 + 0.5, growth_s * 1e9
    return [int(rounded_ns + growth_ns * repeat) / 1e9 for repeat in range(num_steps)]


@dataclass(frozen=True, slots=True)
class ProfileCost:
    """A predictor of the time of an LLM step from an engine's cost profile, which is linear in the size of a
    batch. It is the sum of the time of a batch of all prompt tokens and that of one decode step with so many
    sequences.
    """

    profile: Profile

    def step_s(self, shape: StepShape) -> float:
        """Return the predicted seconds of one LLM step with these numbers of prompt tokens and decodes."""
        seconds = self.profile.batch_s(shape.prefill_tokens) if shape.prefill_tokens else 0.0
        return seconds + (self.profile.decode_s(shape.num_decodes) if shape.num_decodes else 0.0)

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the predicted seconds of `num_repeats` LLM steps in a row that only decode, all with the
        counts in `shape`.
        """
        return num_repeats * self.step_s(shape)
