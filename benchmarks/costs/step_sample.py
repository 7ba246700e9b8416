"""Draws a small and varied sample of measured steps, to see how few of them a fit needs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape


def sample_steps(steps: Sequence[MeasuredStep], share: float, seed: int = 0) -> list[int]:
    """Choose a varied sample of at most `share` of the measured LLM steps, and return its indices.

    The kinds of steps (prefills of short and long prompts; decodes of short, long and unlike contexts) get
    equal numbers. Within a kind, numbers of sequences are covered, small ones more densely.
    """
    kinds: dict[tuple[object, ...], list[int]] = {}
    for index, step in enumerate(steps):
        kinds.setdefault(_kind(step.shape), []).append(index)
    chosen: set[int] = set()
    budget = int(share * len(steps))
    draw = random.Random(seed)
    ordered = sorted(kinds.items(), key=lambda item: (len(item[1]), str(item[0])))
    for position, (_, indices) in enumerate(ordered):
        quota = min((budget - len(chosen)) // (len(ordered) - position), len(indices))
        chosen.update(_spread(indices, [_num_sequences(steps[i].shape) for i in indices], quota, draw))
    return sorted(chosen)


def _num_sequences(shape: StepShape) -> int:
    return shape.num_prefills + shape.num_decodes


def _kind(shape: StepShape) -> tuple[object, ...]:
    if shape.num_prefills:
        return ("prefill", shape.prefill_tokens > 4 * shape.num_prefills)
    mean = shape.context_tokens / shape.num_decodes
    return ("decode", mean > 4, shape.max_context_tokens > 4 * mean)


def _spread(indices: list[int], sizes: list[int], quota: int, draw: random.Random) -> list[int]:
    """Draw one index from each of up to `quota` ranges of sizes: powers of two, then ranges of equal
    width."""
    if quota < 1:
        return []
    ordered = sorted(zip(sizes, indices, strict=True))
    largest = ordered[-1][0]
    few = [edge for edge in (1, 2, 4, 8, 16) if edge < largest][:quota]
    begin = few[-1] if few else 1
    even = quota - len(few)
    edges = sorted({*few, *(round(begin + (largest - begin) * k / (even + 1)) for k in range(1, even + 1))})
    chosen = []
    for low, high in zip(edges, [*edges[1:], largest + 1], strict=True):
        inside = [index for size, index in ordered if low <= size < high]
        if inside:
            chosen.append(draw.choice(inside))
    return chosen
