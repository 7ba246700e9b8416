"""The devices of this machine, and how a new process takes its own before it imports a library for models.

Libraries read their thread counts and the visible accelerators when they are imported or first used, so a
process must `claim` its devices before it unpickles an executable whose module imports such a library.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from stretto.cluster.machine import MAIN_MEMORY, Machine
from stretto.model.devices import cores_of, environment_of
from stretto.model.errors import ConfigError

_QUERY = ("nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits")
_QUERY_S = 30.0


def claim(devices: Sequence[str], threads: int | None) -> None:
    """Confine this process to `devices` (accelerators, cores) and to a number of threads. To be called before
    it imports a library for models.

    A main module that imports torch at its top runs before any code of a spawned process can. Then torch is
    told its threads itself; its accelerators can still be hidden until it first uses one.

    Raises:
        ConfigError: a core is not there or may not be used, or torch has used an accelerator already.
    """
    cores = cores_of(devices)
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError as cause:
            usable = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            raise ConfigError(f"cores {list(cores)} cannot be taken; usable cores: {usable}") from cause
    environment = environment_of(devices, threads)
    os.environ.update(environment)
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if (num_threads := environment.get("OMP_NUM_THREADS")) is not None:
        torch.set_num_threads(int(num_threads))
    if "CUDA_VISIBLE_DEVICES" in environment and torch.cuda.is_initialized():
        raise ConfigError(
            f"devices {list(devices)} cannot be taken: the main module used an accelerator when it was "
            "imported; move that below `if __name__ == '__main__'`"
        )


class LazyPickle:
    """A pickled value that is unpickled only when `open` is called, not when it arrives in another process.

    It carries the code of an engine into a process that must be confined to its devices before anything is
    imported.
    """

    def __init__(self, value: object) -> None:
        """Pickle a value. Raises what pickling raises."""
        self._bytes = pickle.dumps(value)

    def open(self) -> Any:
        """Unpickle and return the value; this imports the modules that the value needs."""
        return pickle.loads(self._bytes)


def has_accelerator() -> bool:
    """Return whether this process may use an accelerator of this machine, as far as NVIDIA's driver lists it
    and the environment does not hide it.
    """
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and bool(_gpu_bytes())


def detect_devices() -> Machine:
    """Return the devices of this machine: the accelerators that NVIDIA's driver lists, the cores that this
    process may use, and the sizes of their memory.
    """
    cores = tuple(f"cpu:{core}" for core in sorted(os.sched_getaffinity(0)))
    gpus = _gpu_bytes()
    main = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine((*gpus, *cores), {**gpus, MAIN_MEMORY: main})


def _gpu_bytes() -> dict[str, int]:
    """Return bytes of memory by accelerator; none where NVIDIA's tool is not there or lists nothing."""
    try:
        listing = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=_QUERY_S).stdout
        rows = [line.split(",") for line in listing.splitlines()]
        return {f"cuda:{int(index)}": int(mib) * 2**20 for index, mib in rows}
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
