"""Messages about instances: what a fleet asks for, and what instances report.

A fleet (the state machine of one engine's instances) asks a driver to start
and stop instances. An instance is addressed by the name of its engine and its `InstanceId`. Ids are never
reused, so that a late message of a dead instance matches no living one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from stretto.cluster.kv_events import KVEvent
from stretto.model.record import record
from stretto.model.replica import Replica

InstanceId: TypeAlias = int
DrainHow: TypeAlias = Literal["finish", "suspend"]
StopHow: TypeAlias = Literal["finish", "suspend", "kill"]


@record
class StartInstance:
    """Action for the runtime or the simulator: start an instance of `replica`, and report `InstanceReady` or
    `InstanceLost`.
    """

    engine: str
    instance: InstanceId
    replica: Replica


@record
class StopInstance:
    """Action for the runtime or the simulator: end an instance, and report `InstanceStopped` when it has
    ended, unless it was killed.

    "finish" ends an idle instance. "suspend" first reports the tasks that run there as suspended. "kill" ends
    one that has been given up, whatever it does; messages that it still sends are ignored.
    """

    engine: str
    instance: InstanceId
    how: StopHow


FleetAction: TypeAlias = StartInstance | StopInstance


@record
class KVReport:
    """Event: an instance reports changes of its prefix cache (blocks stored and removed), in order."""

    engine: str
    instance: InstanceId
    events: Sequence[KVEvent]
