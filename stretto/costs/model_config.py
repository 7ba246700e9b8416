"""Parts of a model's Hugging Face `config.json` that families of models name differently.

What the cost formula cannot describe is refused, so that no model is taken for another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stretto.model.errors import ConfigError

_DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 2}
"""Bytes of a weight when it is served: vLLM runs checkpoints in float32 with 16 bits."""
_NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ACTIVE_EXPERTS = ("num_experts_per_tok", "experts_per_token")
_GATED_ACTIVATIONS = ("silu", "swish", "swiglu", "gelu_pytorch_tanh")
_GATED_FAMILIES = {"gemma": True, "starcoder2": False}
"""Families whose activation function does not tell whether feed-forward layers are gated."""
_OTHER_KEYS = {
    "falcon": "num_kv_heads or multi_query",
    "RefinedWeb": "n_head_kv",
    "RefinedWebModel": "multi_query",
    "qwen": "half of intermediate_size",
}
"""Families whose keys mean something else, and the key at fault."""
_EQUAL_LAYERS: Mapping[str, Any] = {
    "first_k_dense_replace": 0,
    "decoder_sparse_step": 1,
    "moe_layer_freq": 1,
    "moe_layer_frequency": 1,
    "mlp_only_layers": [],
}
"""Keys that tell which layers have experts, with the value for all."""
_OTHER_LAYERS = (
    *("mamba_", "ssm_", "lru_", "linear_num_", "attn_layer_period", "attn_type_list", "kv_lora_rank"),
    "block_configs",
)
"""First letters of keys of models with other layers than attention with KV heads, equal in all layers."""
_LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")


class Experts(NamedTuple):
    """The feed-forward experts of each layer of a model; one expert stands for a layer without.

    Attributes:
        active: experts that one token uses.
        intermediate_size: inner size of each; 0 where the key for experts is missing.
    """

    num: int = 1
    active: int = 1
    intermediate_size: int = 0


def check_describable(config: Mapping[str, Any]) -> None:
    """Check that the cost formula can describe a model with this `config.json`.

    Raises:
        ConfigError: the model is quantized, or has layers of another kind; the message names the key.
    """
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method", "?") if isinstance(quantized, Mapping) else quantized
        raise ConfigError(
            f"quantization_config: there are no costs of weights quantized by {method!r}; name the folder of "
            "the model that is not quantized"
        )
    family = config.get("model_type")
    if family in _OTHER_KEYS:
        raise ConfigError(f"model_type {family!r}: {_OTHER_KEYS[family]} is not understood")
    for key, value in config.items():
        if key.startswith(_OTHER_LAYERS) and value:
            raise ConfigError(f"{key}: there are no costs of layers other than attention with KV heads")
    for kind in config.get("layer_types") or ():
        if kind not in _LAYER_TYPES:
            raise ConfigError(
                f"layer_types: there are no costs of {kind!r}; known are {', '.join(_LAYER_TYPES)}"
            )


def dtype_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of a weight, and of a number in KV, when the model is served.

    Raises:
        ConfigError: the type is not known.
    """
    name = str(config.get("torch_dtype") or config.get("dtype") or "float16").removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        raise ConfigError(f"torch_dtype must be one of {', '.join(_DTYPE_BYTES)}, got {name!r}")
    return _DTYPE_BYTES[name]


def is_gated(config: Mapping[str, Any]) -> bool:
    """Return whether a feed-forward layer has three matrices: as the key `gated` has it, else as the family
    or the activation function tells.
    """
    if "gated" in config:
        return bool(config["gated"])
    family = str(config.get("model_type"))
    for name, gated in _GATED_FAMILIES.items():
        if family.startswith(name):
            return gated
    names = ("hidden_act", "hidden_activation", "activation_function", "activation")
    activation = next((str(config[name]) for name in names if config.get(name)), "silu")
    return activation in _GATED_ACTIVATIONS


def experts_of(config: Mapping[str, Any]) -> Experts:
    """Return the experts of each layer. Experts that every token uses count as several of the usual size.

    Raises:
        ConfigError: layers differ, or the experts are described by keys that are not known.
        KeyError: the number of active experts is missing.
    """
    num = next((int(config[key]) for key in _NUM_EXPERTS if config.get(key)), 1)
    if num <= 1:
        _check_no_experts(config)
        return Experts()
    active = next((int(config[key]) for key in _ACTIVE_EXPERTS if config.get(key)), 0)
    if not active:
        raise KeyError(_ACTIVE_EXPERTS[0])
    for key, value in _EQUAL_LAYERS.items():
        if config.get(key) not in (None, value):
            raise ConfigError(f"{key} {config[key]}: there are no costs of layers with and without experts")
    size = int(config.get("moe_intermediate_size") or 0)
    shared = _shared_experts(config, size or int(config.get("intermediate_size") or 0))
    return Experts(num + shared, active + shared, size)


def _shared_experts(config: Mapping[str, Any], size: int) -> int:
    """Return how many experts of the usual size every token uses besides those that it chooses."""
    shared = int(config.get("n_shared_experts") or 0)
    for key in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        inner = int(config.get(key) or 0)
        if inner and (not size or inner % size):
            raise ConfigError(f"{key} must be a multiple of the size of an expert, {size}; got {inner}")
        shared += inner // size if inner else 0
    return shared


def _check_no_experts(config: Mapping[str, Any]) -> None:
    for key, value in config.items():
        if "expert" in key and type(value) is int and value > 1:
            raise ConfigError(f"{key}: the number of experts is needed as one of {', '.join(_NUM_EXPERTS)}")
