"""Speeds of the engines, with the source of each number.

As in the paper, all engines except the LLMs run on RTX 3090s. The LLMs run on A100s here. In the paper the
30B model runs on A800s, which compute equally fast; its 7B and 13B models run on 3090s, for which `SLOW` has
the speeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.common.op_prices import Prices
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import Preset, load_preset
from stretto.costs.shape import LLMModel, StepShape
from stretto.costs.step import LLMStepCost, StepCost
from stretto.costs.step_features import StepFeatures
from stretto.model.profile import Profile

CHUNK_TOKENS = 256
STEP_TOKENS = 512
"""Token budget of a step, for all LLM instances."""
_PASSAGE_TOKENS = 101  # tokens of the passages that the preset was measured on: 330-480 characters
_CONTEXT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class LinearStep:
    """Step cost with a base (weights, launches) and constant seconds per token of prompts and of context."""

    base_s: float
    prompt_token_s: float
    context_token_s: float

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        return (
            self.base_s
            + self.prompt_token_s * shape.prefill_tokens
            + self.context_token_s * shape.context_tokens
        )

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Seconds of `num_repeats` decode steps; each sequence grows by one token in each step."""
        growth = shape.num_decodes * num_repeats * (num_repeats - 1) / 2
        return num_repeats * self.step_s(shape) + self.context_token_s * growth


@dataclass(frozen=True, slots=True)
class LeastProfile(Profile):
    """Profile for lower bounds: an instance that does nothing else is not faster.

    A prompt is read in one step, which also yields the first token: n tokens after a prompt cost n steps in
    all, so one of them is taken off the prompt. For the work of many, `per_unit_s` is a token's share of the
    weights, matrices and all-reduces of the largest step: none has more tokens, or less of these for each.
    """

    cost: StepCost | None = None

    def batch_s(self, units: int, tokens: int | None = None) -> float:
        """Seconds of a prompt's tokens, beyond a step of one token."""
        assert self.cost is not None
        return max(0.0, self.cost.step_s(prompt(units)) - self.per_output_s)


def prompt(tokens: int) -> StepShape:
    """Shape of a step that only reads a prompt."""
    return StepShape(1, tokens, tokens, tokens * (tokens + 1) // 2) if tokens else StepShape()


def one_token(context_tokens: int) -> StepShape:
    """Shape of a step that only decodes one token."""
    return StepShape(num_decodes=1, context_tokens=context_tokens, max_context_tokens=context_tokens)


@dataclass(frozen=True, slots=True)
class ModelClass:
    """An LLM, its machine, and the `kv_tokens` of an instance."""

    name: str
    cost: StepCost
    kv_tokens: int
    source: str

    def profile(self) -> Profile:
        """Profile for passes and load balancing: a straight line through two prompts."""
        token_s = (self.cost.step_s(prompt(512)) - self.cost.step_s(prompt(128))) / 384
        output_s = self.cost.step_s(one_token(_CONTEXT_TOKENS))
        two_s = self.cost.step_s(StepShape(0, 0, 0, 0, 2, 2 * _CONTEXT_TOKENS, _CONTEXT_TOKENS))
        return Profile(
            output_s,
            token_s,
            max_efficient_batch=1,
            per_output_s=output_s,
            per_neighbour_s=max(0.0, two_s - output_s),
        )

    def least(self) -> Profile:
        """Profile for lower bounds."""
        output_s = min(self.cost.step_s(one_token(1)), self.cost.step_s(prompt(1)))
        return LeastProfile(
            per_unit_s=_device_s(self.cost) / STEP_TOKENS, per_output_s=output_s, cost=self.cost
        )


def _device_s(cost: StepCost) -> float:
    """Least seconds of the device in a step of `STEP_TOKENS` tokens of any kind."""
    if isinstance(cost, LLMStepCost):
        terms = cost.terms(prompt(STEP_TOKENS))
        return terms.weights + terms.matrix + terms.all_reduce
    return cost.step_s(StepShape(1, STEP_TOKENS, STEP_TOKENS, 0))


LLAMA_30B = LLMModel("llama-30b", 60, 6656, 52, 52, 17920, 32000, max_context_tokens=2048)


@cache
def models() -> Mapping[str, ModelClass]:
    """Core LLMs of the paper's classes, by name."""
    a100 = load_preset("A100-80G")
    return {
        "7B": _measured("7B", a100, a100.model("Llama-2-7b-chat-hf"), 1),
        "13B": _measured("13B", a100, a100.model("Llama-2-13b-hf"), 1),
        "30B": _measured("30B", a100, LLAMA_30B, 2),
    }


def _measured(name: str, preset: Preset, model: LLMModel, tensor_parallel: int) -> ModelClass:
    """LLM with the costs of a preset, except that prompts of a step are not padded to the longest."""
    assert preset.hardware is not None
    features = StepFeatures(
        model, preset.hardware, tensor_parallel, replace(preset.kernels, pads_prompts=False)
    )
    cost = LLMStepCost(features, preset.step_numbers(model, tensor_parallel))
    fitted = "its own" if model.name in preset.models else "those fitted to all models"
    source = f"{model.name} on {tensor_parallel} × {preset.name}, preset; numbers: {fitted}; prompts unpadded"
    return ModelClass(name, cost, min(64_000, check_fits(model, preset.hardware, tensor_parallel)), source)


_LOG = "logs of the Teola prototype's advanced RAG example on an RTX 3090"
SLOW = ModelClass(
    "7B, RTX 3090",
    LinearStep(0.0208, 0.00030, 0.7e-6),
    16_704,
    f"decode and KV room: {_LOG} (20 tokens in 0.435 s; 1,044 blocks of 16). Prefill: Vidur's Llama-2-7b on"
    " an A100, scaled by peak fp16 (312 to 71 TFLOP/s). Context: bytes of KV over bandwidth",
)
PAPER = ModelClass(
    "7B, the paper's examples",
    LinearStep(0.0208, 0.00078, 0.7e-6),
    16_704,
    "Figure 7 of the Teola paper: 512 tokens prefilled in 0.5 s, 1024 in 0.8 s; decode as of the RTX 3090",
)
PAPER_EMBEDDING = Profile(0.05, 0.025, max_efficient_batch=16)
"""Profile of embedding, per chunk."""
PAPER_EMBEDDING_SOURCE = "Figure 4a of the Teola paper: 48 chunks in 1.8 s by 4, in 1.35 s by 16"


@cache
def engines() -> Mapping[str, Profile]:
    """Profiles of all other engines, for passes, policies and load balancing: per chunk, document or row.

    The times of batches in virtual time come from `prices`.
    """
    measured = load_preset("RTX-3090").engines
    scale = CHUNK_TOKENS / _PASSAGE_TOKENS
    return {
        "chunking": Profile(0.0, 0.008, max_efficient_batch=1),
        "embedding": _scaled(measured["embedding"], scale, 64),
        "vectors": measured["ingestion"],
        "reranking": _scaled(measured["reranking"], scale, 32),
        "web": Profile(0.4, 0.0, max_efficient_batch=8),
    }


def prices(profiles: Mapping[str, Profile]) -> Mapping[str, Prices]:
    """Prices of batches whose times do not follow a profile.

    Embedding and reranking depend on the tokens of texts (the preset was measured on passages of one length),
    and a search has another price than a row.

    Assumed: web search and chunking take the same time for any length of query and document.
    """
    measured = load_preset("RTX-3090").engines
    return {
        "embedding": Prices({"embed": _scaled(profiles["embedding"], 1 / CHUNK_TOKENS)}, "texts"),
        "vectors": Prices({"ingest": measured["ingestion"], "search": measured["search"]}),
        "reranking": Prices({"rerank": _scaled(profiles["reranking"], 1 / CHUNK_TOKENS)}, "hits"),
    }


def _scaled(profile: Profile, scale: float, max_batch: int = 1) -> Profile:
    return replace(profile, per_unit_s=profile.per_unit_s * scale, max_efficient_batch=max_batch)


_CHUNKS = (
    f"per chunk of {CHUNK_TOKENS} tokens, shorter texts less: by tokens from passages of {_PASSAGE_TOKENS}"
)
SOURCES: Mapping[str, str] = {
    "chunking": "assumed, 8 ms a document",
    "embedding": f"preset RTX-3090, {_CHUNKS}",
    "vectors": "preset RTX-3090: ingestion, per row; a search takes 1.9 ms",
    "reranking": f"preset RTX-3090, {_CHUNKS}",
    "web": "assumed, 0.4 s for a call of up to 8 queries",
}
