"""Deployments and the machine, from the tables of an engines file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.cluster.machine import Machine
from stretto.cluster.placements.table import PLACEMENTS
from stretto.deployment import Deployment, Engine, Replica, check_replica
from stretto.engines.executables import executable_named
from stretto.engines_file.fields import settable
from stretto.engines_file.tables import Row, Tables
from stretto.errors import ConfigError

_OWN_KEYS = ("engine", "executable", "config")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)")
_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


def read_deployments(tables: Tables) -> tuple[Deployment, ...]:
    """Return the engines of `[[engine]]`, each with its rows of `[[replica]]`, in order.

    Raises:
        ConfigError: a name, key or value is wrong. The message names file and line.
    """
    engines: dict[str, Engine] = {}
    replicas: dict[str, list[Replica]] = {}
    for row in tables.rows("engine"):
        engine = row.build(Engine)
        if engine.name in engines:
            raise row.error(f"there are two engines {engine.name!r}; names must differ", "name")
        if engine.placement not in PLACEMENTS:
            raise row.error(
                f"there is no placement {engine.placement!r}; there are {', '.join(PLACEMENTS)}", "placement"
            )
        engines[engine.name] = engine
        replicas[engine.name] = []
    for row in tables.rows("replica"):
        engine, replica = _replica(row, engines)
        replicas[engine.name].append(replica)
    return tuple(Deployment(engine, tuple(replicas[name])) for name, engine in engines.items())


def read_machine(tables: Tables) -> Machine | None:
    """Return the machine of `[machine]`, None if the file does not describe one.

    Raises:
        ConfigError: as `read_deployments`.
    """
    row = tables.one("machine")
    if row is None:
        return None
    written = row.build(_Written)
    memory = {}
    for name, size in written.memory.items():
        try:
            memory[name] = _bytes_of(size)
        except ConfigError as cause:
            raise row.error(cause.message, "memory", name) from cause
    try:
        return Machine(written.devices, memory)
    except ConfigError as cause:
        raise row.error(cause.message) from cause


@dataclass(frozen=True, slots=True)
class _Written:
    """The table `[machine]` as it is written: memory in bytes, or with a unit as in "80 GiB"."""

    devices: tuple[str, ...]
    memory: Mapping[str, int | str] = field(default_factory=dict)


def _replica(row: Row, engines: Mapping[str, Engine]) -> tuple[Engine, Replica]:
    row.check_keys((*_OWN_KEYS, *settable(Replica, _OWN_KEYS)))
    name, wanted = _text(row, "engine"), _text(row, "executable")
    if name not in engines:
        known = ", ".join(engines) or "none"
        raise row.error(f"there is no engine {name!r}; there are {known}", "engine")
    try:
        executable = executable_named(wanted)
        run, config_kind = executable.load()
    except ConfigError as cause:
        raise row.error(cause.message, "executable") from cause
    engine = engines[name]
    if executable.contract != engine.contract:
        raise row.error(
            f"{wanted!r} serves the contract {executable.contract!r}, "
            f"but engine {name!r} has {engine.contract!r}",
            "executable",
        )
    config: object = row.table("config").build(config_kind, given=executable.fixed)
    replica = row.without(*_OWN_KEYS).build(
        Replica,
        given={"executable": run, "config": config},
        defaults={"runs_in": executable.runs_in, "profile": executable.profile},
    )
    check_replica(engine, replica, row.place())
    return engine, replica


def _text(row: Row, key: str) -> str:
    value = row.values.get(key)
    if not isinstance(value, str):
        problem = "is missing" if value is None else f"is {value!r}"
        raise row.error(f"the key {key!r} {problem}; it must be a text", key)
    return value


def _bytes_of(size: int | str) -> int:
    if isinstance(size, int):
        return size
    if (match := _SIZE.fullmatch(size.strip())) is None:
        raise ConfigError(f"memory is {size!r}; it must be a number of bytes, or a text as '80 GiB'")
    return int(float(match[1]) * 2 ** _UNITS[match[2]])
