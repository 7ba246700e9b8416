"""The engines file that `--engines` names: its deployments, checked against this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stretto.cluster.machine import Machine, Placed, check_free
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica
from stretto.runtime.devices import detect_devices
from stretto.schema.deployments import read_deployments, read_machine
from stretto.schema.tables import Tables


def deployed(tables: Tables) -> tuple[Machine, tuple[Deployment, ...]]:
    """Return the engines that an engines file describes, and the machine on which they run.

    The machine is the one that the file describes, or else this one, as detected.

    Raises:
        ConfigError: a name, key or value is wrong, or the machine cannot hold all replicas at once.
    """
    deployments = read_deployments(tables)
    machine = read_machine(tables) or detect_devices()
    unread = {engine.name: labelled([engine]) for engine in deployments}
    placed: list[Placed] = []
    for row in tables.rows("replica"):
        new = unread[row.values["engine"]].pop(0)
        try:
            check_replica_fits(machine, new, placed)
        except ConfigError as cause:
            raise row.error(cause.message, "devices") from cause
        placed.append(new)
    return machine, deployments


def check_replica_fits(machine: Machine, new: Placed, others: Sequence[Placed]) -> None:
    """Check that a machine has devices and memory for a new replica beside the `others`.

    Raises:
        ConfigError: the replica does not fit, or uses an accelerator that the machine does not have.
    """
    check_free(machine, new, others)
    label, replica = new
    if (device := shared_accelerator(replica)) is not None and device not in machine.devices:
        known = ", ".join(machine.devices) or "none"
        raise ConfigError(f"{label}: device {device!r} is not of this machine, which has {known}")


def shared_accelerator(replica: Replica) -> str | None:
    """Return the name of the accelerator that a replica uses but may share with others,
    as models in our process do.

    None if it uses none, or claims its devices for itself alone.
    """
    device = getattr(replica.config, "device", None)
    if replica.devices or not isinstance(device, str) or not device.startswith("cuda"):
        return None
    return device if ":" in device else "cuda:0"


def labelled(deployments: Iterable[Deployment]) -> list[Placed]:
    """Return all replicas of these engines, each with a label for messages, such as
    "engine 'llm', replica 0".
    """
    return [
        (f"engine {deployment.name!r}, replica {index}", replica)
        for deployment in deployments
        for index, replica in enumerate(deployment.replicas)
    ]
