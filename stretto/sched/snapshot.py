"""An immutable picture of what a system is doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.cluster.fleet import Fleet
from stretto.cluster.messages import InstanceId
from stretto.cluster.transitions import State


@dataclass(frozen=True, slots=True)
class QueryPicture:
    """One query: a session, or one that runs a single graph.

    `num_nodes` are the steps still to end, `open_variables` the outputs and variables still to come.
    """

    query: str
    tenant: str
    is_session: bool
    num_nodes: int
    open_variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstancePicture:
    """One instance that is not gone, and how many tasks it runs."""

    instance: InstanceId
    state: State
    num_running: int


@dataclass(frozen=True, slots=True)
class EnginePicture:
    """One engine: items that wait in its queue, and its fleet."""

    engine: str
    num_waiting: int
    instances: tuple[InstancePicture, ...]


def engine_picture(fleet: Fleet, num_waiting: int, running: Mapping[InstanceId, int]) -> EnginePicture:
    """Return the picture of an engine; `running` has the number of tasks of each live instance."""
    instances = tuple(InstancePicture(i, fleet.state[i], running[i]) for i in fleet.live)
    return EnginePicture(fleet.engine, num_waiting, instances)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All queries, in order of arrival, and all engines."""

    queries: tuple[QueryPicture, ...]
    engines: tuple[EnginePicture, ...]
