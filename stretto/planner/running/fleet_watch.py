"""Which replicas of a running plan hold their devices, as the runtime's fleets know it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from stretto.cluster.messages import DrainHow, StartInstance, StopInstance
from stretto.model.replica import Replica
from stretto.planner.running.plan_executor import PlacedReplica
from stretto.planner.running.replicas import MakeReplica
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Action
from stretto.sched.engine_events import Drain, InstanceLost, InstanceReady, InstanceStopped
from stretto.sched.messages import Event
from stretto.sched.observer import Observer


class FleetWatch(Observer):
    """Adds and drains the replicas of a plan, and tells when one is gone: stopped, or lost and given up.

    A replica that is lost and will be started again is not gone.

    Args:
        make: makes a replica of a planned one.

    Attributes:
        changed: set when a fleet changes; then `gone` may return replicas.
    """

    def __init__(self, make: MakeReplica) -> None:
        self.changed = asyncio.Event()
        self._make = make
        self._replicas: dict[PlacedReplica, Replica] = {}
        self._begun: set[int] = set()
        self._to_drain: dict[PlacedReplica, DrainHow] = {}

    def add(self, runtime: Runtime, placed: PlacedReplica) -> None:
        """Start a replica."""
        self._replicas[placed] = replace(self._make(placed.replica))
        runtime.add_instance(placed.model, self._replicas[placed])

    def drain(self, runtime: Runtime, placed: PlacedReplica, how: DrainHow) -> None:
        """Drain a replica; if the runtime has not begun to start it, as soon as it has."""
        self._to_drain[placed] = how
        self._drain_begun(runtime)

    def gone(self, runtime: Runtime) -> list[PlacedReplica]:
        """Return the replicas that have gone since the last call."""
        self._drain_begun(runtime)
        gone = [
            placed
            for placed, replica in self._replicas.items()
            if id(replica) in self._begun and not self._instances(runtime, placed)
        ]
        for placed in gone:
            self._begun.discard(id(self._replicas.pop(placed)))
            self._to_drain.pop(placed, None)
        return gone

    def is_ready(self, runtime: Runtime, placed: PlacedReplica) -> bool:
        """Return whether a replica can take calls: it has started, and is not known to be gone."""
        if placed not in self._replicas:
            return False
        fleet = _fleet(runtime, placed)
        return any(fleet.state[one] in ("serving", "suspect") for one in self._instances(runtime, placed))

    def on_event(self, event: Event, now_s: float) -> None:
        """Note events that change a fleet."""
        if isinstance(event, Drain | InstanceLost | InstanceReady | InstanceStopped):
            self.changed.set()

    def on_action(self, action: Action, now_s: float) -> None:
        """Note which replicas have begun to start; one that is killed reports no end."""
        if isinstance(action, StartInstance):
            self._begun.add(id(action.replica))
        if isinstance(action, StartInstance | StopInstance):
            self.changed.set()

    def _drain_begun(self, runtime: Runtime) -> None:
        for placed, how in list(self._to_drain.items()):
            if id(self._replicas[placed]) in self._begun:
                del self._to_drain[placed]
                for instance in self._instances(runtime, placed):
                    if _fleet(runtime, placed).state[instance] != "draining":
                        runtime.drain_instance(placed.model, instance, how)

    def _instances(self, runtime: Runtime, placed: PlacedReplica) -> list[int]:
        fleet = _fleet(runtime, placed)
        return [one for one in fleet.live if fleet.replica(one) is self._replicas[placed]]


def _fleet(runtime: Runtime, placed: PlacedReplica) -> Any:
    return runtime.system.schedulers[placed.model].instances.fleet
