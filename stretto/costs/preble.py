"""Preble's regressions of step times on A6000 and A100.

A regression gives milliseconds as a function of the tokens of the batch and of the context of all its
sequences. Long prefills have an additional term for attention.

Source: Preble's public code (Apache-2.0). Differs: between 192 and 384 tokens the original parabola for
Mistral-7B on A6000 falls below zero, and at the borders of its pieces time drops; here a line joins the two
ends, and time never falls as tokens grow. The halved attention of sequences that share their context is left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

from stretto.costs.shape import StepShape
from stretto.model.errors import ConfigError

_LARGE_PREFILL = 2**20  # product of new tokens and all tokens


@dataclass(frozen=True, slots=True)
class PrebleCost:
    """A prediction of an LLM's step times by a regression that Preble's authors fitted to a model on a GPU.

    Attributes:
        linear_ms: milliseconds as a function of the tokens of the batch.
        attention_ms: milliseconds as a function of the context tokens of all sequences.
        extra_ms: additional milliseconds of a long prefill, as a function of its new tokens and its length.
        efficiency: factor on the sum of the parts.
    """

    linear_ms: Callable[[int], float]
    attention_ms: Callable[[int], float]
    extra_ms: Callable[[float, float], float]
    efficiency: float

    def step_s(self, shape: StepShape) -> float:
        """Return the predicted seconds of one step of an LLM instance. Several prefills count as equal ones
        of mean size.
        """
        num_tokens = shape.prefill_tokens + shape.num_decodes
        if not num_tokens:
            return 0.0
        prefills_ms, context = 0.0, shape.context_tokens
        if shape.num_prefills:
            new = shape.prefill_tokens / shape.num_prefills
            before = max(0.0, shape.prefill_pairs / shape.prefill_tokens - (new + 1) / 2)
            length = before + new
            context += round(length * shape.num_prefills)
            if new * length > _LARGE_PREFILL:
                prefills_ms = shape.num_prefills * self.extra_ms(new, length)
        total_ms = self.linear_ms(num_tokens) + self.attention_ms(context) + prefills_ms
        return total_ms / self.efficiency / 1000

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the predicted seconds of `num_repeats` decode steps in a row, all together.

        Each sequence grows by one token in each step, and `shape` is that of the first.
        """
        return sum(self.step_s(shape.after(step)) for step in range(num_repeats))


def _mistral_a6000_linear(n: int) -> float:
    def top(n: int) -> float:
        return 0.10842571 * n + 4.209777054806409

    if n >= 384:
        return top(n)
    return 22.0 + max(0, n - 192) / (384 - 192) * (top(384) - 22.0)


def _mistral_a100_linear(n: int) -> float:
    if n >= 256:
        return 0.05031337 * n + 5.505996912396812
    return 10.5 if n >= 64 else 8.96


def _llama2_a6000_linear(n: int) -> float:
    if n >= 384:
        return max(0.131 * n + 5.67, 0.114 * 384 + 12.4)
    return 0.114 * n + 12.4 if n >= 128 else 26.06523603


def _a6000_attention(context: int) -> float:
    return 0.32 if context <= 1024 else 1.86e-4 * context + 0.159


def _a6000_extra(new: float, length: float) -> float:
    return 1.13e-3 * new + 1.75e-3 * length + 2.19e-6 * new * length


def _a100_extra(new: float, length: float) -> float:
    """Additional milliseconds of a long prefill on an A100.

    The factor of `new` grows with the length; it is never less than at sqrt(2**20) tokens, nor negative.
    """
    least = max(length, sqrt(_LARGE_PREFILL))
    slope = max(0.0, 1.36265841e-6 * least - 7.45358651e-4)
    return 0.12386358316396695 + slope * new + 1.72022673e-3 * length


def _llama2_a6000_attention(context: int) -> float:
    return context / 2048 * 1.663659159


def _no_extra(new: float, length: float) -> float:
    return 0.0


PREBLE: Mapping[str, PrebleCost] = {
    "mistral_7b_a6000": PrebleCost(_mistral_a6000_linear, _a6000_attention, _a6000_extra, 0.9),
    "mistral_7b_a100": PrebleCost(_mistral_a100_linear, _a6000_attention, _a100_extra, 0.85),
    "llama2_7b_a6000": PrebleCost(_llama2_a6000_linear, _llama2_a6000_attention, _no_extra, 1.0),
}


def preble_cost(name: str) -> PrebleCost:
    """Return a predictor of an LLM's step times with the coefficients that the authors of Preble (a scheduler
    that places requests by their prefixes) fitted to measurements. `name` says of which model and GPU, such
    as "mistral_7b_a100".

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in PREBLE:
        raise ConfigError(f"Preble has no regression {name!r}; there are {', '.join(PREBLE)}")
    return PREBLE[name]
