"""The processor of this machine: number types that it computes with natively, cores that we may use, and
which instances of this process compute now.

Instances on threads share the cores of the machine, but know nothing of each other. The loops that run them
(`runtime/worker.py`) note here when they compute. The cores belong to the process, and so does the note.
"""

from __future__ import annotations

import os
import threading
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


class Computing:
    """The threads on which an instance of this process computes at the moment."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def begin(self) -> None:
        """Note that the instance on the calling thread computes from now on."""
        self._threads.add(threading.get_ident())

    def end(self) -> None:
        """Note that the instance on the calling thread waits for work from now on."""
        self._threads.discard(threading.get_ident())

    def is_any_but(self, thread: int) -> bool:
        """Return whether an instance computes on another thread than the one with this identity
        (`threading.get_ident`).
        """
        return not self._threads <= {thread}


COMPUTING = Computing()
"""What computes in this process."""
