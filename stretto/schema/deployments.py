"""Reads the engines, their replicas and the machine from the tables of an engines file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stretto.cluster.machine import Machine
from stretto.cluster.placements.table import check_placement
from stretto.engines.executables import Executable, executable_named
from stretto.model.deployment import Deployment, check_replica
from stretto.model.errors import ConfigError
from stretto.model.replica import Engine, Replica
from stretto.sched.orders import check_policy
from stretto.schema.fields import settable
from stretto.schema.tables import TableRow, Tables

_OWN_KEYS = ("engine", "executable", "config")
_OWN_PROCESS = ("process", "ray")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)")
_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


def read_deployments(tables: Tables) -> tuple[Deployment, ...]:
    """Return the engines that an engines file describes (`[[engine]]`), each with its replicas, in order.

    Raises:
        ConfigError: a name, key or value is wrong. The message names file and line.
    """
    engines = _read_engines(tables)
    replicas: dict[str, list[Replica]] = {name: [] for name in engines}
    for row in tables.rows("replica"):
        name, executable = _served(row, engines)
        replicas[name].append(_read_replica(row, engines[name], executable))
        if executable.keeps_state and not _is_written(tables, name, "keeps_state"):
            engines[name] = replace(engines[name], keeps_state=True)
    return tuple(Deployment(engine, tuple(replicas[name])) for name, engine in engines.items())


def read_machine(tables: Tables) -> Machine | None:
    """Return the machine, with its devices and memory, that an engines file describes; None if it does not.

    Raises:
        ConfigError: a key or value is wrong. The message names file and line.
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


def _read_engines(tables: Tables) -> dict[str, Engine]:
    engines: dict[str, Engine] = {}
    for row in tables.rows("engine"):
        engine = row.build(Engine)
        if engine.name in engines:
            raise row.error(f"there are two engines {engine.name!r}; names must differ", "name")
        for check, key in ((check_placement, "placement"), (check_policy, "policy")):
            try:
                check(getattr(engine, key))
            except ConfigError as cause:
                raise row.error(cause.message, key) from cause
        engines[engine.name] = engine
    return engines


def _is_written(tables: Tables, engine: str, key: str) -> bool:
    return any(row.values["name"] == engine and key in row.values for row in tables.rows("engine"))


def _served(row: TableRow, engines: Mapping[str, Engine]) -> tuple[str, Executable]:
    """Return the engine that a replica is of, by name, and its executable."""
    row.check_keys((*_OWN_KEYS, *settable(Replica, _OWN_KEYS)))
    name, wanted = _text(row, "engine"), _text(row, "executable")
    if name not in engines:
        known = ", ".join(engines) or "none"
        raise row.error(f"there is no engine {name!r}; there are {known}", "engine")
    try:
        executable = executable_named(wanted)
    except ConfigError as cause:
        raise row.error(cause.message, "executable") from cause
    if executable.contract != engines[name].contract:
        raise row.error(
            f"{wanted!r} serves the contract {executable.contract!r}, "
            f"but engine {name!r} has {engines[name].contract!r}",
            "executable",
        )
    return name, executable


def _read_replica(row: TableRow, engine: Engine, executable: Executable) -> Replica:
    try:
        run, config_kind = executable.load()
    except ConfigError as cause:
        raise row.error(cause.message, "executable") from cause
    of_replica = settable(Replica)  # an instance is told these by its replica
    config_row = row.table("config")
    config_row.check_keys(key for key in settable(config_kind, executable.fixed) if key not in of_replica)
    config: object = config_row.build(config_kind, given=executable.fixed)
    replica = row.without(*_OWN_KEYS).build(
        Replica,
        given={"executable": run, "config": config},
        defaults={"runs_in": executable.runs_in, "profile": executable.profile},
    )
    if replica.runs_in not in executable.places:
        places = " or ".join(executable.places)
        hint = "; in Ray an LLM is a server process: 'server:vllm' and the like"
        hint = hint if replica.runs_in == "ray" else ""
        raise row.error(f"runs_in is {replica.runs_in!r}; this executable runs in {places}{hint}", "runs_in")
    check_replica(engine, replica, row.place())
    if replica.runs_in in _OWN_PROCESS:
        _check_devices(row, replica)
    return replica


def _check_devices(row: TableRow, replica: Replica) -> None:
    """Check that a replica which names its devices and threads is alone to do so."""
    for key, field_ in (("devices", "device"), ("threads", "num_threads")):
        if getattr(replica, key) and field_ in (written := row.table("config").values):
            raise row.error(
                f"config.{field_} is {written[field_]!r}, but the replica has {key}; leave it out",
                "config",
                field_,
            )


def _text(row: TableRow, key: str) -> str:
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
