"""Reads the configuration of a checkpoint; a setting that the model does not implement is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stretto.engines.gguf_file import is_gguf, read_gguf
from stretto.model.errors import ConfigError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_MAX_SIZES = {"num_hidden_layers": 10_000, "max_position_embeddings": 2**24}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Settings of Llama 3's scaling of rotary frequencies, which extends the context.

    Low frequencies are divided by `factor`, high ones are kept, and those between change smoothly.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Configuration of a decoder-only transformer of the Llama kind.

    Attributes:
        windows: number of tokens that each layer attends to, the newest included; None for all.
        has_qkv_bias: whether the projections to queries, keys and values have a bias.
        has_output_bias: whether the output projection of the attention has a bias.
        has_qk_norm: whether queries and keys are normalised by head, before the rotation.
        rope_divisors: divisors of the rotary frequencies, one for each pair of a head's values, or None.
    """

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
    rope_divisors: tuple[float, ...] | None = None


def read_config(path: Path) -> ModelConfig:
    """Read the configuration of a checkpoint's model: a folder with a config.json, or a GGUF file.

    Raises:
        ConfigError: the file is missing or damaged, lacks a value, or has an unsupported setting.
    """
    if not is_gguf(path):
        return _parsed(path / "config.json", lambda: read_raw_config(path))
    config = _parsed(path, lambda: read_raw_config(path))
    divisors = _checked(path, read_gguf(path).rope_divisors(), config.head_dim // 2)
    return replace(config, rope_divisors=divisors)


def _checked(path: Path, divisors: tuple[float, ...] | None, number: int) -> tuple[float, ...] | None:
    if divisors is not None and (len(divisors) != number or not all(0 < one < math.inf for one in divisors)):
        raise ConfigError(f"{path}: rope_freqs.weight must have {number} positive numbers")
    return divisors


def read_raw_config(checkpoint: Path) -> Mapping[str, Any]:
    """Read a checkpoint's configuration as its config.json has it, or would have it for a GGUF file.

    Raises:
        ConfigError: the file is missing or damaged, or a GGUF file has a part that is not supported.
    """
    if is_gguf(checkpoint):
        return read_gguf(checkpoint).raw_config()
    path = checkpoint / "config.json"
    if not path.is_file():
        raise ConfigError(f"no checkpoint in {checkpoint}: config.json is missing")
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} is not an object")
    return raw


def _parsed(path: Path, read: Callable[[], Mapping[str, Any]]) -> ModelConfig:
    """Return the configuration that `read` reads from the file at `path`."""
    try:
        return _parse(read())
    except ConfigError as error:
        if str(path) in error.message or str(path.parent) in error.message:
            raise
        raise ConfigError(f"{path}: {error.message}") from error
    except KeyError as error:
        raise ConfigError(f"{path} lacks {error}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{path}: a value of the wrong kind: {error}") from error


def _parse(raw: Mapping[str, Any]) -> ModelConfig:
    family = raw["model_type"]
    if family not in FAMILIES:
        raise ConfigError(
            f"model_type {family!r} is not supported; {', '.join(FAMILIES)} are; vLLM may serve it"
        )
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise ConfigError(f"hidden_act {activation!r} is not supported; 'silu' is")
    for unsupported in ("mlp_bias", "quantization_config"):
        if raw.get(unsupported):
            raise ConfigError(f"{unsupported} is not supported")
    layers, heads = _size(raw, "num_hidden_layers"), _size(raw, "num_attention_heads")
    kv_heads = _size(raw, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"{heads} query heads cannot share {kv_heads} key-value heads evenly")
    theta, scaling = _rope(raw)
    has_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        vocabulary=_size(raw, "vocab_size"),
        hidden=_size(raw, "hidden_size"),
        intermediate=_size(raw, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_size(raw, "head_dim", _size(raw, "hidden_size") // heads),
        context_tokens=_size(raw, "max_position_embeddings"),
        norm_eps=_positive(raw, "rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        windows=_windows(raw, family, layers),
        ties_embeddings=bool(raw.get("tie_word_embeddings", False)),
        has_qkv_bias=family == "qwen2" or (has_bias and family != "mistral"),
        has_output_bias=has_bias and family in ("llama", "qwen3"),
        has_qk_norm=family == "qwen3",
    )


def _size(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    size = int(raw[name] if default is None else raw.get(name) or default)
    largest = _MAX_SIZES.get(name, 2**31)
    if not 1 <= size <= largest:
        raise ConfigError(f"{name} must be from 1 to {largest}, got {size}")
    return size


def _positive(raw: Mapping[str, Any], name: str) -> float:
    number = float(raw[name])
    if not 0 < number < math.inf:
        raise ConfigError(f"{name} must be a positive number, got {number}")
    return number


def _rope(raw: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling of the rotation, from `rope_parameters` or the older `rope_theta` and
    `rope_scaling`."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = _positive({"rope_theta": rope.get("rope_theta") or raw.get("rope_theta") or 1e4}, "rope_theta")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ConfigError(f"rope type {kind!r} is not supported; 'default' and 'llama3' are")
    return theta, Llama3Scaling(
        _positive(rope, "factor"),
        _positive(rope, "low_freq_factor"),
        _positive(rope, "high_freq_factor"),
        _size(rope, "original_max_position_embeddings"),
    )


def _windows(raw: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    """Window of each layer. Mistral's applies to all layers; Qwen's must be switched on, for some layers."""
    window = _size(raw, "sliding_window") if raw.get("sliding_window") else None
    if family == "mistral" and window:
        return (window,) * layers
    if family not in ("qwen2", "qwen3") or not window or not raw.get("use_sliding_window"):
        return (None,) * layers
    first = int(raw.get("max_window_layers", layers))
    kinds = raw.get("layer_types") or [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(layers)
    ]
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ConfigError(f"layer_types {kinds!r} is not supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
