"""The places where Triton's kernels can be tested: compiled on a GPU, else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")


def skip_unless_kernels_run() -> None:
    """Skip the test, or the file that is being loaded."""
    if HAS_GPU:
        pytest.importorskip("triton", reason="Triton is not installed")
        return
    # Older interpreters do not go with numpy 2.4.
    pytest.importorskip("triton", minversion="3.9", reason="there is no GPU, and Triton 3.9 is not installed")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("there is no GPU, and Triton is without its interpreter", allow_module_level=True)
