"""Where a model runs, and how what the host worked out gets there."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.errors import ConfigError


def device_of(name: str) -> torch.device:
    """`cpu`, `cuda`, `cuda:1` and the like, or `auto`: the first GPU if there is one, else the CPU.

    Raises:
        ConfigError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise ConfigError(f"device {name!r} is not supported: cpu, cuda and auto are")
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used: {error}") from error


def has_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels can be used there; without them torch does the same, slower."""
    return device.type == "cuda" and find_spec("triton") is not None


def upload(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """The array there. To a GPU without waiting: the copy is made before whatever is enqueued next."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
