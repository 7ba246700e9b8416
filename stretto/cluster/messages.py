"""Messages about instances: what a fleet asks of a driver, and what instances report.

An instance is addressed by the name of its engine and its `InstanceId`. Ids are never reused, so that a
late message of a dead instance concerns nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stretto.cluster.kv_events import KVEvent
from stretto.deployment import Replica

InstanceId: TypeAlias = int
DrainHow: TypeAlias = Literal["finish", "suspend"]
StopHow: TypeAlias = Literal["finish", "suspend", "kill"]


@dataclass(frozen=True, slots=True)
class StartInstance:
    """Start an instance of `replica`. Answer with ready or lost."""

    engine: str
    instance: InstanceId
    replica: Replica


@dataclass(frozen=True, slots=True)
class StopInstance:
    """End an instance, and say when it has stopped.

    "finish" ends an idle one. "suspend" first reports the tasks that run there as suspended. "kill" ends
    one that has been given up, whatever it does; nothing that it still says counts.
    """

    engine: str
    instance: InstanceId
    how: StopHow


FleetAction: TypeAlias = StartInstance | StopInstance


@dataclass(frozen=True, slots=True)
class KVReport:
    """Changes of what an instance's prefix cache holds, in order."""

    engine: str
    instance: InstanceId
    events: Sequence[KVEvent]


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """How busy an instance says it is, counting requests that others sent it.

    `kv_share` is the used share of its KV memory, from 0 to 1; None if it does not tell.
    """

    num_running: int
    num_waiting: int
    kv_share: float | None = None


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How busy an instance is."""

    engine: str
    instance: InstanceId
    load: InstanceLoad
