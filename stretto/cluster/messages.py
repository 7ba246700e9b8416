"""Messages about instances: what a fleet asks of a driver, and what instances report.

An instance is addressed by the name of its engine and its `InstanceId`. Ids are never reused, so that a
late message of a dead instance matches no living one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from stretto.cluster.kv_events import KVEvent
from stretto.deployment import Replica
from stretto.record import record

InstanceId: TypeAlias = int
DrainHow: TypeAlias = Literal["finish", "suspend"]
StopHow: TypeAlias = Literal["finish", "suspend", "kill"]


@record
class StartInstance:
    """Action: start an instance of `replica`. The driver answers with `InstanceReady` or `InstanceLost`."""

    engine: str
    instance: InstanceId
    replica: Replica


@record
class StopInstance:
    """Action: end an instance. The driver reports with `InstanceStopped` when it has ended, unless killed.

    "finish" ends an idle one. "suspend" first reports the tasks that run there as suspended. "kill" ends
    one that has been given up, whatever it does; messages that it still sends are ignored.
    """

    engine: str
    instance: InstanceId
    how: StopHow


FleetAction: TypeAlias = StartInstance | StopInstance


@record
class KVReport:
    """Event: changes of what an instance's prefix cache holds, in order."""

    engine: str
    instance: InstanceId
    events: Sequence[KVEvent]


@record
class InstanceLoad:
    """The load that an instance reports, counting requests that others sent it."""

    num_running: int
    num_waiting: int


@record
class LoadReport:
    """Event: an instance has reported its load."""

    engine: str
    instance: InstanceId
    load: InstanceLoad
