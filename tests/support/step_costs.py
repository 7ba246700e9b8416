"""Models, hardware and numbers for tests of step costs."""

from __future__ import annotations

from stretto.costs.shape import Hardware, LLMModel, StepShape
from stretto.costs.step import LLMStepCost
from stretto.costs.step_features import StepFeatures
from stretto.costs.step_terms import NUMBERS

GPU = Hardware("gpu", 80e9, 2e12, 5e12, 3e14)
SMALL = LLMModel("small", 32, 4096, 32, 32, 11008, 32000)
MOE = LLMModel("moe", 8, 1024, 16, 4, 2048, 1000, num_experts=8, active_experts=2)
TRUE = {
    "launch": 2.6e-4,
    "prefill_launch": 1e-4,
    "weights": 0.9,
    "matrix_128": 0.8,
    "matrix_256": 0.2,
    "prefill_blocks": 2.5e-8,
    "prefill_pairs": 1.0,
    "blocks": 8e-9,
    "kv": 1.1,
    "longest": 3.5e-8,
    "preparation": 2.5e-4,
    "preparation_sequence": 4e-6,
    "preparation_token": 3e-9,
    "sampling": 5e-4,
    "sampling_sequence": 9e-6,
    "host": 1e-3,
}


def numbers(**given: float) -> dict[str, float]:
    """Return all numbers; 0 but for those given."""
    return {**dict.fromkeys(NUMBERS, 0.0), **given}


def true_cost(model: LLMModel = SMALL) -> LLMStepCost:
    """Return the cost that synthetic measurements follow."""
    return LLMStepCost(StepFeatures(model, GPU), numbers(**TRUE))


def shapes() -> list[StepShape]:
    """Return prefills and decodes with short, long and unlike contexts, of up to 512 sequences."""
    found = []
    for n in range(1, 513, 3):
        found.append(StepShape(n, n, 1, n))
        length = max(1, 4096 // n)
        found.append(StepShape(n, n * length, length, n * length * (length + 1) // 2))
        found.append(StepShape(num_decodes=n, context_tokens=n, max_context_tokens=1))
        context = min(4096, 100_000 // n)
        found.append(StepShape(num_decodes=n, context_tokens=n * context, max_context_tokens=context))
        found.append(StepShape(num_decodes=n, context_tokens=4095 + n, max_context_tokens=4096))
    return found
