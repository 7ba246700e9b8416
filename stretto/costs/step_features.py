"""The features of an LLM step, such as bytes to read, from sizes of the model and peaks of the hardware."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stretto.costs.shape import Hardware, LLMModel, StepShape
from stretto.costs.step_terms import FEW, NUMBERS
from stretto.costs.tiles import Multiplication

_USUAL_HEAD = 128


@dataclass(frozen=True, slots=True)
class Kernels:
    """Properties of an engine's attention kernels that decide how long its LLM steps take.

    Attributes:
        pads_prompts: whether prompts of a step are padded to the longest of them.
        split_blocks: largest number of (sequence, head) pairs with which contexts are split among workers.
        partition_tokens: tokens of one part of a split context.
        unsplit_tokens: models that allow longer contexts than this always split them.
        tokens_alike: whether all tokens choose the same experts, as the equal tokens of a profile do.
    """

    pads_prompts: bool = False
    split_blocks: int = 512
    partition_tokens: int = 512
    unsplit_tokens: int = 8192
    tokens_alike: bool = False


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """The features of an LLM step of a model on some hardware: quantities such as bytes to read, of which its
    predicted time is a combination.

    The predicted time is made of the features, each multiplied with a fitted number.
    """

    model: LLMModel
    hardware: Hardware
    tensor_parallel: int = 1
    kernels: Kernels = Kernels()
    multiplication: Multiplication = field(init=False, repr=False, compare=False)
    _rates: _Rates = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rates", _rates(self.model, self.hardware, self.tensor_parallel))
        parts = self.model, self.hardware, self.tensor_parallel, self.kernels.tokens_alike
        object.__setattr__(self, "multiplication", Multiplication(*parts))

    def of(self, shape: StepShape) -> list[float]:
        """Return the features (quantities that the time depends on) of a step of this shape, in the order of
        the fitted numbers (`NUMBERS`).
        """
        rates, kernels, layers = self._rates, self.kernels, self.model.num_layers
        prefills, prefill_tokens, longest_prefill, pairs, decodes, context, max_context = shape
        prompt_tokens = prefills * longest_prefill if kernels.pads_prompts else prefill_tokens
        tokens = prompt_tokens + decodes
        if not tokens:
            return [0.0] * len(NUMBERS)
        read_s = rates.read_s or self.model.read_bytes(tokens, alike=kernels.tokens_alike) * rates.byte_s
        longest, parts = self.longest(decodes, max_context)
        activation_s = rates.activation_s * tokens
        devices = self.tensor_parallel
        is_alone = devices == 1
        num_sequences = prefills + decodes
        launches = layers * (self.model.kernels_per_layer + (0 if is_alone else 2))
        return [
            layers,
            layers if prefills else 0.0,
            launches,
            launches if prefills else 0.0,
            read_s,
            -(-tokens // 128) * 128 * rates.token_s,
            -(-tokens // 256) * 256 * rates.token_s,
            self.multiplication.seconds(tokens),
            (64 if tokens <= 64 else -(-tokens // 128) * 128) * rates.token_s,
            activation_s if is_alone else 0.0,
            activation_s,
            layers * self.model.kernels_per_layer,
            0.0 if is_alone else layers,
            0.0 if is_alone else activation_s,
            0.0 if is_alone else 2 * activation_s / devices,
            rates.blocks * (prefills + prefill_tokens / 64),
            rates.pair_s * pairs,
            rates.blocks * decodes,
            rates.blocks * decodes * (parts - 1),
            rates.kv_s * context,
            rates.longest * longest,
            1.0,
            num_sequences,
            prompt_tokens + decodes * max_context,
            0.0 if is_alone else 1.0,
            1.0,
            num_sequences,
            max(0, num_sequences - FEW),
            rates.words_s * num_sequences,
            rates.output_s,
            1.0,
            num_sequences,
            0.0 if is_alone else 1.0,
            num_sequences,
        ]

    def longest(self, num_decodes: int, max_context: int) -> tuple[int, int]:
        """Return how many tokens of the longest context one worker follows, and the number of its parts."""
        kernels, parts = self.kernels, 1
        if self.model.max_context_tokens > kernels.unsplit_tokens:
            parts = max(1, -(-max_context // kernels.partition_tokens))
        if parts > 1 or num_decodes * self._rates.heads <= kernels.split_blocks:
            max_context = min(max_context, kernels.partition_tokens)
        return max_context, parts


class _Rates(NamedTuple):
    """Rates of one device at its peak, in seconds.

    They are: per byte of weights; for all weights (0 if that depends on the tokens); per token in matrices
    and in the operations between them; per pair of tokens; per token of KV. Also the number of heads, and of
    (layer, head) pairs.
    """

    byte_s: float
    read_s: float
    token_s: float
    activation_s: float
    pair_s: float
    kv_s: float
    words_s: float
    output_s: float
    heads: float
    blocks: float
    longest: float


def _rates(model: LLMModel, hardware: Hardware, tensor_parallel: int) -> _Rates:
    byte_s = 1 / tensor_parallel / hardware.bandwidth_bytes_s
    heads = model.num_heads / tensor_parallel
    blocks = model.num_layers * heads
    head_bytes = 2 * model.head_size * model.dtype_bytes
    kv_bytes = model.kv_bytes_per_token / min(tensor_parallel, model.num_kv_heads)
    wide = max(1.0, model.head_size / _USUAL_HEAD)
    kv_s = max(kv_bytes / hardware.bandwidth_bytes_s, blocks * head_bytes / hardware.cache_bandwidth_bytes_s)
    return _Rates(
        byte_s=byte_s,
        read_s=model.read_bytes(1) * byte_s if model.active_experts == model.num_experts else 0.0,
        token_s=2 * model.token_params / tensor_parallel / hardware.flops,
        activation_s=model.num_layers * model.hidden_size * model.dtype_bytes / hardware.bandwidth_bytes_s,
        pair_s=4 * blocks * model.head_size / hardware.flops,
        kv_s=kv_s * wide,
        words_s=4 * model.vocab_size / hardware.bandwidth_bytes_s,
        output_s=model.vocab_size * model.hidden_size * model.dtype_bytes * byte_s,
        heads=heads,
        blocks=blocks,
        longest=model.num_layers * wide**2,
    )
