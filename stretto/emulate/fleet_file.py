"""Reads a fleet of emulated servers from TOML.

    [machine]
    devices = ["A100-80G", "A100-80G", "RTX-3090"]
    links = [[0, 1]]

    [[replica]]
    model = "llama-2-7b"
    devices = [0, 1]

The keys of a replica are the fields of `WantedServer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.emulate.wanted import WantedServer
from stretto.model.errors import ConfigError
from stretto.schema.reading import read_tables


@dataclass(frozen=True, slots=True)
class FleetMachine:
    """The table `[machine]` of a fleet's file.

    Attributes:
        devices: kind of each device.
        links: groups of devices that are joined by NVLink; None if all are.
    """

    devices: tuple[str, ...]
    links: tuple[tuple[int, ...], ...] | None = None


def read_fleet(path: Path) -> tuple[FleetMachine, tuple[WantedServer, ...]]:
    """Return the machine and the servers that a file describes.

    Raises:
        ConfigError: the file cannot be read, or has a wrong key or value; the message has its line.
    """
    tables = read_tables(path)
    machine = tables.one("machine")
    if machine is None:
        raise ConfigError(f"{path}: the table [machine] is missing; it has the machine's devices")
    servers = tuple(row.build(WantedServer) for row in tables.rows("replica"))
    return machine.build(FleetMachine), servers
