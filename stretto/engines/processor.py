"""The processor of this machine: number types that it computes with natively, and cores that we may use."""

from __future__ import annotations

import os
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
_NATIVE_BFLOAT16 = {"avx512_bf16", "amx_bf16"}


def has_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether the processor has instructions for bfloat16: AVX512-BF16 or AMX-BF16.

    Other processors compute it in software, which is slower than float32.

    Args:
        cpuinfo: description of the processor, as Linux writes it. Without that file the answer is no.
    """
    try:
        lines = cpuinfo.read_text("utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not _NATIVE_BFLOAT16.isdisjoint(flags)


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
