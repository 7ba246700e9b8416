"""The check that a fleet of emulated servers is possible on its emulated machine, and its reader from TOML.

    [machine]
    devices = ["A100-80G", "A100-80G", "RTX-3090"]
    links = [[0, 1]]

    [[replica]]
    model = "llama-2-7b"
    devices = [0, 1]

The keys of a replica are the fields of `WantedServer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stretto.cluster.machine import Machine, Placed, check_free
from stretto.costs.known_costs import NO_COSTS, batch_device, llm_device
from stretto.costs.loading import PCIE_BYTES_S
from stretto.costs.presets import Preset, all_presets
from stretto.emulate.faults import ServerFault
from stretto.emulate.llm_plan import PlannedLLM, check_llm
from stretto.emulate.wanted import Kind, WantedFleet, WantedServer
from stretto.http.client.address import check_port_number
from stretto.model.errors import ConfigError
from stretto.model.nearest_name import nearest_name
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.schema.reading import read_tables

_MEMORY_BYTES: Mapping[str, int] = {"RTX-3090": 24 * 2**30}
"""Memory of devices whose presets have none, by their data sheets."""
_BATCH_MODELS: Mapping[Kind, str] = {"embedding": "bge-large-en-v1.5", "reranking": "bge-reranker-large"}


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """An emulated embedding or reranking server that has been checked."""

    kind: Kind
    name: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class PlannedServer:
    """A server of a fleet that has been checked.

    Attributes:
        held: bytes that it takes of each device.
        loading_s, waking_s: emulated seconds of a start, and of waking up.
    """

    service: PlannedLLM | PlannedBatches
    host: str
    port: int
    held: Mapping[str, int]
    loading_s: float
    waking_s: float
    dialect: Literal["vllm", "sglang"] = "vllm"
    kv_events: str | None = None
    is_asleep: bool = False
    faults: tuple[ServerFault, ...] = ()

    @property
    def text(self) -> str:
        """Description of the server in one line."""
        places = ", ".join(self.held)
        match self.service:
            case PlannedLLM(preset=preset, served=served):
                return f"{served.name} on {preset.name} ({places})"
            case PlannedBatches(kind=kind, name=name):
                return f"{kind} with {name} ({places})"


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """A fleet that has been checked.

    Attributes:
        memory: bytes of each device.
    """

    servers: tuple[PlannedServer, ...]
    memory: Mapping[str, int] = field(default_factory=dict)
    speed: float = 1.0


def check_fleet(wanted: WantedFleet) -> PlannedFleet:
    """Look up the costs of all servers of a fleet, and check that their devices hold them together.

    Raises:
        ConfigError: a name, a number, a port or a device cannot be used; the message names the server.
    """
    if not 0 < wanted.speed < math.inf:
        raise ConfigError(f"the speed is {wanted.speed}; it must be positive")
    if not wanted.servers:
        raise ConfigError("the fleet has no servers; it needs at least one")
    memory = {f"cuda:{number}": _memory_of(kind) for number, kind in enumerate(wanted.devices)}
    for group in wanted.links or ():
        if others := [device for device in group if not 0 <= device < len(memory)]:
            raise ConfigError(
                f"links have device {others[0]}; the machine has {len(memory)}, numbered from 0"
            )
    machine = Machine(tuple(memory), memory)
    planned: list[PlannedServer] = []
    placed: list[Placed] = []
    next_port = wanted.port
    for number, server in enumerate(wanted.servers):
        label = f"server {number}"
        port = next_port if server.port is None else server.port
        next_port = port + 1 if port else 0
        if port and any(other.port == port for other in planned):
            raise ConfigError(f"{label}: port {port} is taken by another server of the fleet")
        try:
            check_port_number(port)
            _check_devices(wanted, server.devices)
            found = _plan(wanted, server, number, port, memory)
            if found.kv_events and any(other.kv_events == found.kv_events for other in planned):
                raise ConfigError(
                    f"KV events at {found.kv_events!r} are published by another server of the fleet; "
                    "{port} in the address stands for a server's port, if that is not 0"
                )
        except ConfigError as error:
            raise ConfigError(f"{label}: {error.message}") from error
        replica = Replica(
            _Held, _Held(found.held), runs_in="process", devices=tuple(found.held), tp=len(found.held)
        )
        if not server.asleep:
            check_free(machine, (label, replica), placed)
            placed.append((label, replica))
        planned.append(found)
    for number, _ in wanted.faults:
        if number >= len(planned):
            raise ConfigError(f"a fault is of server {number}; there are {len(planned)}, numbered from 0")
    return PlannedFleet(tuple(planned), memory, wanted.speed)


class _Held:
    """The memory that a server takes, in the form in which a machine asks for it."""

    def __init__(self, held: Mapping[str, int]) -> None:
        self._num_bytes = max(held.values())

    def device_bytes(self, kind: str, total: int) -> int:
        """Return the bytes that the server takes of each of its devices."""
        return self._num_bytes


def _plan(
    wanted: WantedFleet, server: WantedServer, number: int, port: int, memory: Mapping[str, int]
) -> PlannedServer:
    device = wanted.devices[server.devices[0]]
    names = [f"cuda:{one}" for one in server.devices]
    faults = tuple(fault for of, fault in wanted.faults if of == number)
    if server.loading_s is not None and not 0 <= server.loading_s < math.inf:
        raise ConfigError(f"loading_s is {server.loading_s}; it must be a number of seconds from 0 on")
    service: PlannedLLM | PlannedBatches
    if server.kind == "llm":
        service = check_llm(server, device)
        held = {name: int(server.memory_share * memory[name]) for name in names}
        loading_s = service.loading_s
        waking_s = service.sizes.weight_bytes / len(names) / PCIE_BYTES_S
    else:
        if server.kv_events is not None or server.dialect != "vllm" or len(names) > 1:
            raise ConfigError(f"{server.kind} takes one device, and neither KV events nor another dialect")
        profile = batch_device(device, server.kind).engines[server.kind]
        name = server.served_name or server.model or _BATCH_MODELS[server.kind]
        service = PlannedBatches(server.kind, name, profile)
        if not 0 < server.memory_gib < math.inf:
            raise ConfigError(f"memory_gib is {server.memory_gib}; it must be positive")
        held = {name: math.ceil(server.memory_gib * 2**30) for name in names}
        loading_s, waking_s = server.loading_s or 0.0, server.memory_gib * 2**30 / PCIE_BYTES_S
    events = server.kv_events and server.kv_events.replace("{port}", str(port))
    return PlannedServer(
        service=service,
        host=wanted.host,
        port=port,
        held=held,
        loading_s=loading_s,
        waking_s=waking_s,
        dialect=server.dialect,
        kv_events=events,
        is_asleep=server.asleep,
        faults=faults,
    )


def _check_devices(wanted: WantedFleet, devices: Sequence[int]) -> None:
    if not devices or len(set(devices)) < len(devices):
        raise ConfigError(f"devices are {list(devices)}; a server needs at least one, and each once")
    for device in devices:
        if not 0 <= device < len(wanted.devices):
            raise ConfigError(f"there is no device {device}; the machine has {len(wanted.devices)}")
    kinds = {wanted.devices[device] for device in devices}
    if len(kinds) > 1:
        raise ConfigError(f"its devices differ, {' and '.join(sorted(kinds))}; they must be of one kind")
    for group in wanted.links or ():
        inside = set(group) & set(devices)
        if inside and len(devices) > 1 and inside != set(group) and inside != set(devices):
            raise ConfigError(
                f"devices {list(devices)} are not linked as measured: they have a part of the linked devices "
                f"{list(group)} and others too; choose whole groups, or devices of one group"
            )


def _memory_of(kind: str) -> int:
    if kind in _MEMORY_BYTES:
        return _MEMORY_BYTES[kind]
    if kind.endswith(".json"):
        return _memory(llm_device(kind))
    known = _presets_with_memory()
    return _memory(known[nearest_name(kind, [*known, *_MEMORY_BYTES], f"{NO_COSTS} device")])


def _memory(preset: Preset) -> int:
    assert preset.hardware is not None
    return int(preset.hardware.memory_bytes)


def _presets_with_memory() -> dict[str, Preset]:
    return {name: preset for name, preset in all_presets().items() if preset.hardware is not None}


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
