"""A report from a spawned process about the devices it has claimed. Imports torch, and so must come
sealed.
"""

from __future__ import annotations

import os

import torch


def report() -> dict[str, object]:
    """Return what this process was given, as torch and the system see it."""
    return {
        "threads": torch.get_num_threads(),
        "cores": sorted(os.sched_getaffinity(0)),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
