"""Limits of offline work in a step, found by its predicted times."""

from __future__ import annotations

from collections.abc import Callable

from stretto.costs.offline import OfflineLimits
from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost

_MOST_TOKENS = 1 << 20
_CONTEXT = 1024
"""Tokens of a usual context."""
_OTHERS = (1, 8, 32)
"""Numbers of other decodes in steps that offline work may lengthen by a small part only."""


def offline_limits(cost: StepCost, *, longer: float = 0.05, alone_s: float = 0.045) -> OfflineLimits:
    """Return limits by the predicted times of steps.

    Args:
        longer: part of its time by which offline work may lengthen a step of other decodes; decodes by
            half of that.
        alone_s: seconds that a step without other work may take; prefills take half of what is left beside
            the least step.
    """

    def fits(context_tokens: int, prefill_tokens: int, longer: float) -> bool:
        return all(
            cost.step_s(_shape(others, context_tokens, prefill_tokens))
            <= cost.step_s(_shape(others, 0, 0)) * (1 + longer)
            for others in _OTHERS
        )

    context_tokens = _most(lambda tokens: fits(tokens, 0, longer / 2))
    half_s = (cost.step_s(_shape(1, 0, 0)) + alone_s) / 2
    alone_tokens = _most(lambda tokens: cost.step_s(_shape(0, tokens, 0)) <= half_s)
    return OfflineLimits(
        context_tokens,
        _most(lambda tokens: fits(context_tokens, tokens, longer)),
        alone_tokens,
        _most(lambda tokens: cost.step_s(_shape(0, alone_tokens, tokens)) <= alone_s),
    )


def _shape(others: int, context_tokens: int, prefill_tokens: int) -> StepShape:
    """Return the sizes of a step of `others` usual decodes, and offline decodes and a prefill."""
    decodes = others - (-context_tokens // _CONTEXT)
    pairs = prefill_tokens * (prefill_tokens + 1) // 2
    context_tokens += others * _CONTEXT
    has_prefill = int(prefill_tokens > 0)
    longest = _CONTEXT if decodes else 0
    return StepShape(has_prefill, prefill_tokens, prefill_tokens, pairs, decodes, context_tokens, longest)


def _most(fits: Callable[[int], bool]) -> int:
    """Return the largest number of tokens that fits, at least 1; times grow with tokens."""
    low, high = 1, _MOST_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
