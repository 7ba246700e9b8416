"""Configurations of engines that have devices and threads of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from stretto.cluster.devices import cores_of


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
