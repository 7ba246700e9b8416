"""Names of devices, and what confines a process and its engine to them.

A device is "cuda:N", the accelerator N of its machine, or "cpu:N", the core N.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from stretto.model.errors import ConfigError

_NAME = re.compile(r"(cuda|cpu):(\d+)")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def parse_device(device: str) -> tuple[str, int]:
    """Return the kind ("cuda" or "cpu") and the number of a device name.

    Raises:
        ConfigError: the name has another form.
    """
    match = _NAME.fullmatch(device) if isinstance(device, str) else None
    if match is None:
        raise ConfigError(f"device {device!r} is unknown; a device is 'cuda:N' or 'cpu:N', N a number")
    return match[1], int(match[2])


def cores_of(devices: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the CPU cores among `devices`, sorted."""
    return tuple(sorted(number for kind, number in map(parse_device, devices) if kind == "cpu"))


def environment_of(devices: Sequence[str], threads: int | None) -> dict[str, str]:
    """Return the environment variables that confine a process to `devices` and `threads`.

    They must be set before the process imports a library for models, such as torch. Without `threads`, a
    process that has cores among its devices uses one thread for each. It sees no accelerators but those in
    `devices`; a process without devices sees all of the machine.
    """
    found: dict[str, str] = {}
    cores = cores_of(devices)
    if threads is not None or cores:
        found |= dict.fromkeys(_THREAD_VARIABLES, str(threads or len(cores)))
    if devices:
        numbers = [number for kind, number in map(parse_device, devices) if kind == "cuda"]
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, numbers))
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return found


def confined(config: Any, devices: Sequence[str], threads: int | None) -> Any:
    """Return a copy of an engine's configuration for a process that is confined to these devices and threads.

    Its fields `device` and `num_threads` are set, if it has them. Such a process sees no other accelerators,
    so its own is called "cuda" there, whatever its number is on the machine.
    """
    cores = cores_of(devices)
    told: dict[str, object] = {}
    if devices:
        told["device"] = "cpu" if cores else "cuda"
    if threads is not None or cores:
        told["num_threads"] = threads or len(cores)
    is_value = is_dataclass(config) and not isinstance(config, type)
    known = {field.name for field in fields(config)} if is_value else set()
    changes = {name: value for name, value in told.items() if name in known}
    return replace(config, **changes) if changes else config
