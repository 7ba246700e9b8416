"""Memory that an instance takes, as far as it is known before it starts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stretto.engines.transformer.config import ModelConfig
from stretto.engines.transformer.weights import assemble_weights

_GPU_PROCESS_BYTES = 2**30
"""Context of a process on a GPU, its kernels and captured graphs: an estimate."""
_FLOAT32_BYTES = 4


def num_parameters(config: ModelConfig) -> int:
    """Return the number of parameters of a model, from its configuration alone."""
    sizes: list[int] = []

    def get(name: str, *shape: int) -> Tensor:
        sizes.append(math.prod(shape))
        return torch.empty(shape, device="meta")

    assemble_weights(config, get)
    return sum(sizes)


def instance_bytes(
    config: ModelConfig, kind: str, dtype: torch.dtype, kv_bytes: int, max_batch_tokens: int, max_running: int
) -> int:
    """Return the bytes that an instance will take of a device: weights, KV, and a step's activations.

    Args:
        kind: "cuda" or "cpu".
    """
    step_values = max_batch_tokens * (4 * config.hidden + 3 * config.intermediate)
    logits_bytes = 2 * max_running * config.vocabulary * _FLOAT32_BYTES
    process_bytes = _GPU_PROCESS_BYTES if kind == "cuda" else 0
    values = num_parameters(config) + step_values
    return values * dtype.itemsize + kv_bytes + logits_bytes + process_bytes
