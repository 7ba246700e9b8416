"""The GPUs of this machine, as NVIDIA's driver lists them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from stretto.costs.gpus import GPUS
from stretto.model.errors import ConfigError
from stretto.planner.machine import PlanMachine

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
_TOPOLOGY = ("nvidia-smi", "topo", "-m")
_TIMEOUT_S = 30.0
_MAKERS = ("NVIDIA ", "Quadro ", "Tesla ")
_MIB = 2**20
_NAMES: Mapping[str, str] = {reported: name for name, gpu in GPUS.items() for reported in gpu.reported}
_INSTEAD = "name a machine, or a machine file (see docs/planner.md)"


def detect_machine() -> PlanMachine:
    """Return this machine, with all the GPUs that NVIDIA's driver lists.

    Raises:
        ConfigError: there are none, or of several kinds or one that is not known, or the environment hides
            some of them.
    """
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        raise ConfigError(
            f"machine 'here': CUDA_VISIBLE_DEVICES is {visible!r}, but all GPUs of this machine would be "
            f"used; unset it, or {_INSTEAD}"
        )
    found = _output(_QUERY)
    return machine_from(found, _output(_TOPOLOGY) if len(found.splitlines()) > 1 else "")


def machine_from(gpus: str, topology: str) -> PlanMachine:
    """Return the machine that nvidia-smi describes.

    Args:
        gpus: names and memory of its GPUs, as comma-separated lines.
        topology: matrix of the connections between its GPUs.

    Raises:
        ConfigError: there are no GPUs, or of several kinds or one that is not known.
    """
    rows = [line.rpartition(",") for line in gpus.splitlines() if line.strip()]
    if not rows:
        raise ConfigError(
            f"machine 'here': nvidia-smi lists no GPU; take 'cpu', for this machine's cores, or {_INSTEAD}"
        )
    names = [_short(name) for name, _, _ in rows]
    if len(set(names)) > 1:
        kinds = ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))
        raise ConfigError(
            f"machine 'here': it has GPUs of several kinds, {kinds}; a plan needs equal ones: {_INSTEAD}"
        )
    if names[0] not in _NAMES:
        raise ConfigError(
            f"machine 'here': the GPU {names[0]!r} is not known; write a machine file with its peak figures "
            f"(see docs/planner.md). Known are {', '.join(sorted(_NAMES))}"
        )
    gpu = _NAMES[names[0]]
    memory = min(_memory_bytes(text) for _, _, text in rows)
    return PlanMachine(
        f"{len(rows)}x{gpu}",
        len(rows),
        gpu,
        memory_bytes=memory,
        has_nvlink=len(rows) == 1 or has_nvlink_pairs(topology, len(rows)),
    )


def has_nvlink_pairs(topology: str, num_gpus: int) -> bool:
    """Return whether NVLink joins GPUs 0 and 1, 2 and 3, and so on, in a matrix of `nvidia-smi topo -m`."""
    rows: dict[int, list[str]] = {}
    for line in topology.splitlines():
        name, *cells = line.split() or [""]
        if match := re.fullmatch(r"GPU(\d+)", name):
            rows[int(match[1])] = cells
    pairs = [(first, first + 1) for first in range(0, num_gpus - 1, 2)]
    return all(len(rows.get(a, ())) > b and rows[a][b].startswith("NV") for a, b in pairs)


def _short(name: str) -> str:
    """Return the name of a GPU without its maker's."""
    name = name.strip()
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    return name


def _memory_bytes(text: str) -> float:
    match = re.fullmatch(r"(\d+) MiB", text.strip())
    if match is None:
        raise ConfigError(f"machine 'here': nvidia-smi gives a memory of {text.strip()!r}, not of some MiB")
    return float(int(match[1]) * _MIB)


def _output(command: tuple[str, ...]) -> str:
    """Return what a command prints; nothing if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
