"""The simulated machines of the paper's evaluation, and what the planner believes of them.

Source: Parrot §8.1: one A100 with 80 GB and four A6000 with 48 GB. Differs: engines batch prompts in chunks,
do not pad them, and split long contexts, as engines have done since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from stretto.costs.kv_room import check_fits
from stretto.costs.presets import load_preset
from stretto.costs.shape import LLMModel, StepShape
from stretto.costs.step import LLMStepCost, StepCost
from stretto.costs.step_features import StepFeatures
from stretto.model.profile import Profile

_MAX_CONTEXT = 32_768
_TYPICAL_CONTEXT = 1000


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of LLM instance.

    Attributes:
        kv_tokens: number of tokens whose KV it can hold.
        kv_bytes: bytes of the KV of one token.
    """

    name: str
    cost: StepCost
    kv_tokens: int
    kv_bytes: int

    @property
    def profile(self) -> Profile:
        """The straight lines that come nearest to the cost: what passes and placement policies are told."""
        output_s = self.cost.step_s(_decodes(1))
        token_s = (self.cost.step_s(_prompt(1024)) - self.cost.step_s(_prompt(512))) / 512
        neighbour_s = (self.cost.step_s(_decodes(17)) - output_s) / 16
        return Profile(
            output_s,
            token_s,
            max_efficient_batch=1,
            per_output_s=output_s,
            per_neighbour_s=max(0.0, neighbour_s),
        )


def _prompt(num_tokens: int) -> StepShape:
    return StepShape(1, num_tokens, num_tokens, num_tokens * (num_tokens + 1) // 2)


def _decodes(number: int) -> StepShape:
    return StepShape(
        num_decodes=number, context_tokens=number * _TYPICAL_CONTEXT, max_context_tokens=_TYPICAL_CONTEXT
    )


@cache
def a100(model_name: str) -> Machine:
    """Return an A100 with a Llama: "Llama-2-13b-hf" or "Llama-2-7b-hf"."""
    preset = load_preset("A100-80G")
    assert preset.hardware is not None
    model = replace(preset.model(model_name), max_context_tokens=_MAX_CONTEXT)
    features = StepFeatures(model, preset.hardware, 1, replace(preset.kernels, pads_prompts=False))
    cost = LLMStepCost(features, preset.step_numbers(model))
    return _machine(f"{model_name} on A100", cost, model, check_fits(model, preset.hardware, 1))


@cache
def a6000() -> Machine:
    """Return an A6000 with Llama-2-7b."""
    preset = load_preset("A6000")
    assert preset.hardware is not None
    model = preset.model("Llama-2-7b-hf")
    cost = preset.step_cost(model)
    return _machine("Llama-2-7b-hf on A6000", cost, model, check_fits(model, preset.hardware, 1))


def _machine(name: str, cost: StepCost, model: LLMModel, kv_tokens: int) -> Machine:
    return Machine(name, cost, kv_tokens, model.kv_bytes_per_token)


MACHINES: Mapping[str, Callable[[], Machine]] = {
    "A100, 13B": lambda: a100("Llama-2-13b-hf"),
    "A100, 7B": lambda: a100("Llama-2-7b-hf"),
    "A6000, 7B": a6000,
}
"""Functions that make the machines, by name."""
