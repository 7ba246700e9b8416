"""Sizes of recorded steps."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.costs.shape import StepShape


def shape_of(slices: Iterable[tuple[int, int, bool]]) -> StepShape:
    """Return the sizes of an LLM step (numbers of sequences and tokens) that decide how long it takes.

    `slices` has (tokens before, tokens computed, whether it is a decode) of each sequence.
    """
    num_prefills = prefill_tokens = max_prefill = pairs = num_decodes = context = max_context = 0
    for start, num_tokens, is_decode in slices:
        if is_decode:
            num_decodes += 1
            context += start + num_tokens
            max_context = max(max_context, start + num_tokens)
        else:
            num_prefills += 1
            prefill_tokens += num_tokens
            max_prefill = max(max_prefill, num_tokens)
            pairs += num_tokens * start + num_tokens * (num_tokens + 1) // 2
    return StepShape(num_prefills, prefill_tokens, max_prefill, pairs, num_decodes, context, max_context)
