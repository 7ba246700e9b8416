"""The simulated LLM instances of the benchmark: what a step takes there, and what the planner believes.

Source: Preble §5.2: Mistral-7B on an A6000, and Llama-3-70B on four H100. Differs: the steps of the latter
are predicted from measured kernels alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from stretto.costs.preble import preble_cost
from stretto.costs.presets import load_preset
from stretto.costs.shape import LLMModel, StepShape
from stretto.costs.step import StepCost
from stretto.model.profile import Profile

_LLAMA_3_70B = LLMModel(
    "Llama-3-70B",
    num_layers=80,
    hidden_size=8192,
    num_heads=64,
    num_kv_heads=8,
    intermediate_size=28_672,
    vocab_size=128_256,
    max_context_tokens=131_072,
)
_CONTEXT = 2000


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of LLM instance.

    Attributes:
        kv_tokens: number of tokens whose KV it can hold.
    """

    name: str
    cost: StepCost
    kv_tokens: int

    @property
    def profile(self) -> Profile:
        """What the planner believes: lines through the costs of chunks of prefills and of decodes."""
        chunk_s, half_s = self._prefill_s(512), self._prefill_s(256)
        per_token_s = (self._prefill_s(1024) - chunk_s) / 512
        alone_s = self._decode_s(1)
        return Profile(
            base_s=max(0.0, min(half_s, chunk_s - 512 * per_token_s)),
            per_unit_s=per_token_s,
            per_output_s=alone_s,
            per_neighbour_s=max(0.0, (self._decode_s(33) - alone_s) / 32),
        )

    def _prefill_s(self, num_tokens: int) -> float:
        pairs = num_tokens * (num_tokens + 1) // 2
        return self.cost.step_s(StepShape(1, num_tokens, num_tokens, pairs))

    def _decode_s(self, num: int) -> float:
        return self.cost.step_s(
            StepShape(num_decodes=num, context_tokens=num * _CONTEXT, max_context_tokens=_CONTEXT)
        )


@dataclass(frozen=True, slots=True)
class Slower:
    """A step cost that is a multiple of another."""

    cost: StepCost
    factor: float

    def step_s(self, shape: StepShape) -> float:
        """Return the predicted seconds of one step."""
        return self.factor * self.cost.step_s(shape)

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the predicted seconds of `num_repeats` decode steps in a row, all together."""
        return self.factor * self.cost.steps_s(shape, num_repeats)


def _four_h100() -> Machine:
    preset = load_preset("H100-80G-kernels")
    return Machine("Llama-3-70B on 4 x H100", preset.step_cost(_LLAMA_3_70B, 4), 440_000)


_MACHINES: Mapping[str, Callable[[], Machine]] = {
    "A6000": lambda: Machine("Mistral-7B on A6000", preble_cost("mistral_7b_a6000"), 198_516),
    "A100": lambda: Machine("Mistral-7B on A100", preble_cost("mistral_7b_a100"), 440_000),
    "4xH100": _four_h100,
}


@cache
def machine(name: str) -> Machine:
    """Return the machine of a name: "A6000", "A100" or "4xH100"."""
    return _MACHINES[name]()
