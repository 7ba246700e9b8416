"""What of a checkpoint's config.json the model needs; anything it does not implement is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import ConfigError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Stretches low rotary frequencies by `factor`, high ones not at all, those between smoothly."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer of the Llama kind.

    Attributes:
        windows: of each layer, how many tokens back it attends, itself included; None for all.
        has_qkv_bias: of the projections to queries, keys and values; `has_output_bias` of the one back.
        has_qk_norm: queries and keys are normalised by head, before the rotation.
    """

    family: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    windows: tuple[int | None, ...]
    ties_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_qk_norm: bool


def read_config(folder: Path) -> ModelConfig:
    """Read `folder`/config.json.

    Raises:
        ConfigError: it is missing or no JSON, lacks a value, or asks for what is not implemented.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"no checkpoint in {folder}: config.json is missing")
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} is not an object")
    try:
        return _parse(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error
    except KeyError as error:
        raise ConfigError(f"{path} lacks {error}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{path}: a value of the wrong kind: {error}") from error


def is_supported(folder: Path) -> bool:
    """Whether `read_config` takes it."""
    try:
        read_config(folder)
    except ConfigError:
        return False
    return True


def _parse(raw: Mapping[str, Any]) -> ModelConfig:
    family = raw["model_type"]
    if family not in FAMILIES:
        raise ConfigError(f"model_type {family!r} is not supported; {', '.join(FAMILIES)} are")
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise ConfigError(f"hidden_act {activation!r} is not supported; 'silu' is")
    for unsupported in ("mlp_bias", "quantization_config"):
        if raw.get(unsupported):
            raise ConfigError(f"{unsupported} is not supported")
    layers, heads = int(raw["num_hidden_layers"]), int(raw["num_attention_heads"])
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise ConfigError(f"{heads} query heads cannot share {kv_heads} key-value heads evenly")
    theta, scaling = _rope(raw)
    has_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        family=family,
        vocabulary=int(raw["vocab_size"]),
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["intermediate_size"]),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
        context_tokens=int(raw["max_position_embeddings"]),
        norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=theta,
        rope_scaling=scaling,
        windows=_windows(raw, family, layers),
        ties_embeddings=bool(raw.get("tie_word_embeddings", False)),
        has_qkv_bias=family == "qwen2" or (has_bias and family != "mistral"),
        has_output_bias=has_bias and family in ("llama", "qwen3"),
        has_qk_norm=family == "qwen3",
    )


def _rope(raw: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling, from today's `rope_parameters` or yesterday's `rope_theta` and `rope_scaling`."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ConfigError(f"rope type {kind!r} is not supported; 'default' and 'llama3' are")
    return theta, Llama3Scaling(
        float(rope["factor"]),
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(rope["original_max_position_embeddings"]),
    )


def _windows(raw: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    """Mistral's window is for all layers; Qwen's has to be switched on, and says for which."""
    window = raw.get("sliding_window")
    if family == "mistral" and window:
        return (int(window),) * layers
    if family not in ("qwen2", "qwen3") or not window or not raw.get("use_sliding_window"):
        return (None,) * layers
    first = int(raw.get("max_window_layers", layers))
    kinds = raw.get("layer_types") or [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(layers)
    ]
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ConfigError(f"layer_types {kinds!r} is not supported")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
