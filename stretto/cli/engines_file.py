"""The file that `--engines` names: what is deployed, checked against this machine."""

from __future__ import annotations

from pathlib import Path

from stretto.cluster.machine import Machine, check_deployments
from stretto.deployment import Deployment
from stretto.engines_file.deployments import read_deployments, read_machine
from stretto.engines_file.tables import Tables
from stretto.errors import ConfigError
from stretto.runtime.devices import detect_machine


def read_tables(path: Path) -> Tables:
    """Read and parse an engines file.

    Raises:
        ConfigError: it cannot be read, or is no engines file.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path}: cannot be read: {cause}") from cause
    return Tables(text, str(path))


def deployed(tables: Tables) -> tuple[Machine, tuple[Deployment, ...]]:
    """Return the deployments of a file and the machine they run on: its own, or else this one as detected.

    Raises:
        ConfigError: a name, key or value is wrong, or the machine cannot hold all replicas at once.
    """
    deployments = read_deployments(tables)
    machine = read_machine(tables) or detect_machine()
    check_deployments(machine, deployments)
    return machine, deployments
