"""Reads the tensors of a checkpoint, from safetensors files or a GGUF file, in the shapes of the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stretto.engines.gguf_file import is_gguf, read_gguf
from stretto.engines.packed_matrix import can_pack, multiply, pack
from stretto.engines.transformer.config import ModelConfig
from stretto.model.errors import ConfigError

NUM_ROWS = 16
"""Number of rows of a step that weights are laid out for."""


class Linear:
    """A linear layer: a matrix (out, in), as in the checkpoint, and perhaps a bias.

    The matrix is packed if `can_pack` says so. For few rows this takes a third less time.
    """

    def __init__(
        self, matrix: Tensor, bias: Tensor | None = None, can_pack: Callable[[Tensor], bool] = can_pack
    ) -> None:
        self._bias = bias
        self._is_packed = can_pack(matrix)
        self._matrix = pack(matrix, NUM_ROWS) if self._is_packed else matrix

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply x with the transposed matrix, and add the bias."""
        if self._is_packed:
            return multiply(x, self._matrix, self._bias)
        return F.linear(x, self._matrix, self._bias)


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of one transformer layer. Projections with the same input are one matrix: q, k and v; gate
    and up.
    """

    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The weights of a whole transformer model."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    vocabulary: Linear


def load_weights(path: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """Read a checkpoint's weights in a given dtype and to a device.

    Args:
        path: folder with safetensors files, or a GGUF file.

    Raises:
        ConfigError: files or tensors are missing, corrupt or misshapen.
    """
    if is_gguf(path):
        return _load_gguf(path, config, dtype, device)
    return _load_safetensors(path, config, dtype, device)


def _load_gguf(path: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    file = read_gguf(path)

    def get(name: str, *shape: int) -> Tensor:
        values = file.tensor(name)
        if values.shape != shape:
            raise ConfigError(f"{name} in {path} is {values.shape}, expected {shape}")
        return torch.from_numpy(values).to(device=device, dtype=dtype)

    try:
        return assemble_weights(config, get)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the weights in {path}: {error}") from error


def _load_safetensors(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    with ExitStack() as stack:
        try:
            where = _locate(folder)
            files = {
                file: stack.enter_context(safe_open(folder / file, "pt"))
                for file in dict.fromkeys(where.values())
            }

            def get(name: str, *shape: int) -> Tensor:
                if name not in where:
                    raise ConfigError(f"the weights in {folder} lack {name}")
                tensor: Tensor = files[where[name]].get_tensor(name)
                if tensor.shape != shape:
                    raise ConfigError(f"{name} in {folder} is {tuple(tensor.shape)}, expected {shape}")
                return tensor.to(device=device, dtype=dtype)

            return assemble_weights(config, get)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"cannot read the weights in {folder}: {error}") from error


def _locate(folder: Path) -> dict[str, str]:
    """Find the file of each tensor, by name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        where = dict(json.loads(index.read_text("utf-8"))["weight_map"])
        if strange := [file for file in where.values() if file != Path(file).name]:
            raise ConfigError(f"{index} names {strange[0]!r}, which is not a file in the same folder")
        return where
    single = "model.safetensors"
    if not (folder / single).is_file():
        raise ConfigError(f"no weights in {folder}: neither {single} nor {index.name}")
    with safe_open(folder / single, "pt") as file:
        return dict.fromkeys(file.keys(), single)


def assemble_weights(config: ModelConfig, get: Callable[..., Tensor]) -> Weights:
    """Build the weights of a model from tensors that `get(name, *shape)` returns, by checkpoint names."""
    hidden, mlp, dim = config.hidden, config.intermediate, config.head_dim
    q_rows, kv_rows = config.heads * dim, config.kv_heads * dim

    def layer(number: int) -> LayerWeights:
        at = f"model.layers.{number}."
        projections = (("q", q_rows), ("k", kv_rows), ("v", kv_rows))
        attn = at + "self_attn."
        qkv = torch.cat([get(f"{attn}{p}_proj.weight", rows, hidden) for p, rows in projections])
        qkv_bias = None
        if config.has_qkv_bias:
            qkv_bias = torch.cat([get(f"{attn}{p}_proj.bias", rows) for p, rows in projections])
        output_bias = get(attn + "o_proj.bias", hidden) if config.has_output_bias else None
        return LayerWeights(
            attention_norm=get(at + "input_layernorm.weight", hidden),
            qkv=Linear(qkv, qkv_bias),
            q_norm=get(attn + "q_norm.weight", dim) if config.has_qk_norm else None,
            k_norm=get(attn + "k_norm.weight", dim) if config.has_qk_norm else None,
            output=Linear(get(attn + "o_proj.weight", hidden, q_rows), output_bias),
            mlp_norm=get(at + "post_attention_layernorm.weight", hidden),
            gate_up=Linear(torch.cat([get(f"{at}mlp.{p}_proj.weight", mlp, hidden) for p in ("gate", "up")])),
            down=Linear(get(at + "mlp.down_proj.weight", hidden, mlp)),
        )

    embedding = get("model.embed_tokens.weight", config.vocabulary, hidden)
    tied = config.ties_embeddings
    return Weights(
        embedding=embedding,
        layers=tuple(layer(number) for number in range(config.layers)),
        norm=get("model.norm.weight", hidden),
        vocabulary=Linear(embedding if tied else get("lm_head.weight", config.vocabulary, hidden)),
    )
