"""The devices of a machine, and the check whether replicas fit it together.

A replica takes each of its accelerators whole, unless its configuration has a method
`device_bytes(kind, total)` that says how much of the memory of a "cuda" or "cpu" device it takes; then
several may share one. Cores may be shared, and all of them use the machine's main memory, called "cpu".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stretto.model.deployment import Deployment
from stretto.model.devices import parse_device
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica

MAIN_MEMORY = "cpu"


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices of a machine and the sizes of their memory.

    Attributes:
        devices: names of the devices: "cuda:N" for accelerators, "cpu:N" for cores.
        memory: bytes of each accelerator, and of main memory under "cpu", as far as they are known.
    """

    devices: tuple[str, ...]
    memory: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for device in self.devices:
            parse_device(device)
        for name, num_bytes in self.memory.items():
            if name != MAIN_MEMORY and (name not in self.devices or name.startswith("cpu")):
                raise ConfigError(
                    f"machine: memory of {name!r}; it can be stated of {MAIN_MEMORY!r} and of accelerators"
                )
            if type(num_bytes) is not int or num_bytes < 1:
                raise ConfigError(
                    f"machine: memory of {name!r} is {num_bytes!r}; it must be bytes, at least 1"
                )


Placed = tuple[str, Replica]
"""A replica, with the label that error messages use for it."""


def check_deployments(machine: Machine, deployments: Iterable[Deployment]) -> None:
    """Check that the devices and ports of this machine suffice for all replicas that run here at once.

    Raises:
        ConfigError: a device is not there, or cannot hold all that are declared on it.
    """
    placed: list[Placed] = []
    for deployment in deployments:
        for index, replica in enumerate(deployment.replicas):
            label = f"engine {deployment.engine.name!r}, replica {index}"
            check_free(machine, (label, replica), placed)
            placed.append((label, replica))


def check_free(machine: Machine, new: Placed, others: Sequence[Placed]) -> None:
    """Check that the devices and the port which a new replica needs are not taken by the
    replicas `others`, which run now.

    Raises:
        ConfigError: a port or a device is taken, unknown, or too small.
    """
    label, replica = new
    if replica.port is not None:
        for other, there in others:
            if (there.host, there.port) == (replica.host, replica.port):
                raise ConfigError(
                    f"{label}: port {replica.port} is taken by {other}; choose another, or leave it out"
                )
    if replica.runs_in == "ray":
        return  # the cluster's own scheduler knows that machine
    for device in replica.devices:
        if device not in machine.devices:
            raise ConfigError(
                f"{label}: device {device!r} is not of this machine, which has {_listed(machine.devices)}"
            )
    for pool, taken in _taken(machine, replica).items():
        _check_pool(machine, pool, label, taken, others)


def _check_pool(machine: Machine, pool: str, label: str, taken: int | None, others: Sequence[Placed]) -> None:
    """Check that `taken` bytes (None: the whole device) are free beside what others take of `pool`."""
    total = machine.memory.get(pool)
    beside = [
        (other, bytes_there[pool])
        for other, there in others
        if there.runs_in != "ray" and pool in (bytes_there := _taken(machine, there))
    ]
    if beside and (total is None or taken is None or any(num_bytes is None for _, num_bytes in beside)):
        whole = label if taken is None else next((o for o, n in beside if n is None), None)
        why = "its memory is unknown" if whole is None else f"{whole} takes it whole"
        raise ConfigError(
            f"{label}: device {pool} holds {beside[0][0]} already, and {why}; "
            "give them different devices, or run one after the other"
        )
    needed = (taken or 0) + sum(num_bytes or 0 for _, num_bytes in beside)
    if total is not None and needed > total:
        with_others = f" with {', '.join(other for other, _ in beside)}" if beside else ""
        remedy = ", or run one after the other" if beside else ""
        raise ConfigError(
            f"{label}: needs {_gib(taken or 0)} of {pool},{with_others} {_gib(needed)} in all, of "
            f"{_gib(total)}; give it another device or less memory{remedy}"
        )


def _taken(machine: Machine, replica: Replica) -> dict[str, int | None]:
    """Return the bytes that a replica takes by device, None for a whole one; cores count as main memory."""
    device_bytes = getattr(replica.config, "device_bytes", None)
    taken: dict[str, int | None] = {}
    for device in replica.devices:
        kind, _ = parse_device(device)
        pool = MAIN_MEMORY if kind == "cpu" else device
        total = machine.memory.get(pool)
        if device_bytes is not None and total is not None:
            taken[pool] = device_bytes(kind, total)
        elif pool != MAIN_MEMORY:
            taken[pool] = None
    return taken


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _listed(devices: Sequence[str]) -> str:
    return ", ".join(devices) or "none"
