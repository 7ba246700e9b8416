"""Chooses the device of a model, and copies arrays to it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.model.errors import ConfigError


def device_of(name: str) -> torch.device:
    """Return torch's device of a name such as `cpu`, `cuda` or `cuda:1`.

    `auto` is the first GPU if there is one, else the CPU.

    Raises:
        ConfigError: this machine has no such device.
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
    """Return whether Triton kernels can run on a device; elsewhere torch computes the same, more slowly."""
    return device.type == "cuda" and find_spec("triton") is not None


def upload(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Copy a numpy array to a torch device; return the tensor.

    A copy to a GPU is only started, but work that is enqueued later finds it done.
    """
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
