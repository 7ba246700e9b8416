"""The sizes of a step, a model and a device that decide how long the step takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from stretto.costs.model_config import check_describable, dtype_bytes, experts_of, is_gated
from stretto.model.errors import ConfigError

_MAX_SIZE = 10**9


class StepShape(NamedTuple):
    """The sizes of one step of an LLM instance that decide how long it takes; a prefill is any share of a
    sequence that is not a decode.

    Attributes:
        num_prefills: number of prompts or chunks of prompts.
        prefill_tokens: tokens computed for all prefills.
        max_prefill_tokens: tokens computed for the longest prefill.
        prefill_pairs: pairs of tokens that attend to each other: l·start + l·(l+1)/2 for a chunk of l
            tokens after `start` others.
        num_decodes: number of sequences that get one token each.
        context_tokens: context of all decodes, in tokens; the token being computed counts.
        max_context_tokens: context of the longest decode, in tokens.
    """

    num_prefills: int = 0
    prefill_tokens: int = 0
    max_prefill_tokens: int = 0
    prefill_pairs: int = 0
    num_decodes: int = 0
    context_tokens: int = 0
    max_context_tokens: int = 0

    def after(self, num_steps: int) -> StepShape:
        """Return the sizes of the same decode step `num_steps` steps later, when each sequence has that many
        more tokens.

        The step must have no prefills.
        """
        context_tokens = self.context_tokens + num_steps * self.num_decodes
        return StepShape(0, 0, 0, 0, self.num_decodes, context_tokens, self.max_context_tokens + num_steps)


@dataclass(frozen=True, slots=True)
class LLMModel:
    """The sizes of a transformer that decide its costs, as in its `config.json`.

    Attributes:
        gated: whether a feed-forward layer has three matrices rather than two.
        num_experts: copies of each feed-forward layer.
        active_experts: copies that one token uses.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int
    head_size: int = 0
    gated: bool = True
    num_experts: int = 1
    active_experts: int = 1
    dtype_bytes: int = 2
    max_context_tokens: int = 4096

    def __post_init__(self) -> None:
        if not self.head_size:
            object.__setattr__(self, "head_size", self.hidden_size // max(1, self.num_heads))
        sizes = [value for value in asdict(self).values() if not isinstance(value, bool | str)]
        if min(sizes) < 1:
            raise ConfigError(f"model {self.name!r}: all sizes must be positive: {self}")
        if max(sizes) > _MAX_SIZE:
            raise ConfigError(f"model {self.name!r}: a size is too large, more than {_MAX_SIZE}")
        if self.num_kv_heads > self.num_heads or self.active_experts > self.num_experts:
            raise ConfigError(
                f"model {self.name!r}: more KV heads than heads, or active experts than experts"
            )

    @property
    def attention_params(self) -> int:
        """Number of weights of the model in one layer's attention."""
        width = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_size
        return self.hidden_size * width

    @property
    def expert_params(self) -> int:
        """Number of weights in one feed-forward expert of one layer.

        A layer without experts counts as one expert.
        """
        return (3 if self.gated else 2) * self.hidden_size * self.intermediate_size

    @property
    def token_params(self) -> int:
        """Number of weights that one token is multiplied with, over all layers of the model."""
        return self.num_layers * (self.attention_params + self.active_experts * self.expert_params)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights of the model, embedding and output layers included."""
        layers = self.num_layers * (self.attention_params + self.num_experts * self.expert_params)
        return (layers + 2 * self.vocab_size * self.hidden_size) * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that the keys and values of one token take, over all layers of the model."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * self.dtype_bytes

    @property
    def kernels_per_layer(self) -> int:
        """Number of kernels that one layer launches, about.

        Two more where the feed-forward layer is not gated: such models add residuals by themselves. Experts
        add ten: the choice of experts, its sorting, and the sum of their results.
        """
        return 10 + (0 if self.gated else 2) + (10 if self.num_experts > 1 else 0)

    def used_experts(self, num_tokens: int, *, alike: bool = False) -> float:
        """Return the expected number of experts that some token uses.

        Each token is assumed to choose at random, or all the same experts if they are `alike`.
        """
        if alike:
            return float(self.active_experts)
        return self.num_experts * (1 - (1 - self.active_experts / self.num_experts) ** num_tokens)

    def read_bytes(self, num_tokens: int, *, alike: bool = False) -> float:
        """Return the bytes of weights that a step over `num_tokens` tokens reads, without the output layer.

        Experts count if some token uses them.
        """
        used = self.used_experts(num_tokens, alike=alike)
        return self.num_layers * (self.attention_params + used * self.expert_params) * self.dtype_bytes


def model_of(name: str, config: Mapping[str, Any]) -> LLMModel:
    """Build the description of a model's sizes from its Hugging Face `config.json`.

    The key `gated`, if there is one, decides whether a feed-forward layer has three matrices; else its
    family or activation function does.

    Raises:
        KeyError: the configuration lacks a key that is needed.
        ConfigError: the model is quantized, or of a kind whose costs are not known; the message has the key.
    """
    check_describable(config)
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    experts = experts_of(config)
    inner = experts.intermediate_size or config.get("intermediate_size") or config.get("ffn_dim")
    return LLMModel(
        name=name,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        intermediate_size=int(inner or 4 * hidden),
        vocab_size=int(config["vocab_size"]),
        head_size=int(config.get("head_dim") or 0),
        gated=is_gated(config),
        num_experts=experts.num,
        active_experts=experts.active,
        dtype_bytes=dtype_bytes(config),
        max_context_tokens=int(config.get("max_position_embeddings") or 4096),
    )


@dataclass(frozen=True, slots=True)
class Hardware:
    """The peak figures (memory, bandwidth, operations) of one accelerator.

    Attributes:
        memory_bytes: size of its memory.
        bandwidth_bytes_s: bandwidth of its memory, in bytes per second.
        cache_bandwidth_bytes_s: bandwidth of its cache, in bytes per second.
        flops: matrix operations per second.
        num_cores: parts that compute a tile of a product each; 0 where it is not known.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_s: float
    cache_bandwidth_bytes_s: float
    flops: float
    num_cores: int = 0

    def __post_init__(self) -> None:
        sizes = (self.memory_bytes, self.bandwidth_bytes_s, self.cache_bandwidth_bytes_s, self.flops)
        if not all(0 < size < math.inf for size in sizes) or self.num_cores < 0:
            raise ConfigError(
                f"hardware {self.name!r}: memory, bandwidths and flops must be positive: {sizes}"
            )
