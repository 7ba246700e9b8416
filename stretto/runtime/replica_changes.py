"""Replicas that are added and drained while a runtime runs, checked before anything is done."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import get_args

from stretto.cluster.machine import Machine, check_free
from stretto.cluster.messages import DrainHow, InstanceId
from stretto.model.deployment import Deployment, check_replica
from stretto.model.errors import ConfigError
from stretto.model.replica import Engine, Replica
from stretto.sched.engine_events import AddInstance, Drain
from stretto.sched.engine_tier import EngineTier
from stretto.sched.messages import Event


class ReplicaChanges:
    """Checks changes of the replicas of a runtime, and returns the events that make them.

    Args:
        machine: devices that replicas may name; None checks nothing.
        ray_address: head of the Ray cluster that replicas may run in; "" for none.
    """

    def __init__(
        self,
        deployments: Mapping[str, Deployment],
        engines: EngineTier,
        machine: Machine | None,
        ray_address: str,
    ) -> None:
        self._deployments = deployments
        self._engines = engines
        self._machine = machine
        self._ray_address = ray_address

    def add(self, engine: str, replica: Replica, posted: Iterable[Event]) -> AddInstance:
        """Return the event that starts one more instance. `posted` are events that are not handled yet.

        Raises:
            ConfigError: there is no such engine, or the replica does not fit it, or the devices that are free
                now do not suffice.
        """
        deployment = self._deployment(engine)
        where = f"engine {engine!r}, new replica"
        if not isinstance(replica, Replica):
            raise ConfigError(f"{where}: it must be a Replica, got {reprlib.repr(replica)}")
        check_replica(deployment.engine, replica, where)
        self.check_ray(deployment.engine, replica)
        if self._machine is not None:
            added = [event for event in posted if isinstance(event, AddInstance)]
            new = [(f"the new replica of engine {event.engine!r}", event.replica) for event in added]
            check_free(self._machine, (where, replica), [*self._engines.placed_replicas(), *new])
        return AddInstance(engine, replica)

    def drain(
        self, engine: str, instance: InstanceId, how: DrainHow, posted: Iterable[Event], *, force: bool
    ) -> Drain:
        """Return the event that drains an instance. `posted` are events that are not handled yet.

        Raises:
            ConfigError: there is no such instance, it is draining or gone, or it is the last one.
        """
        self._deployment(engine)
        if type(instance) is not int:
            raise ConfigError(f"an instance is a whole number, got {reprlib.repr(instance)}")
        if how not in get_args(DrainHow):
            raise ConfigError(f"how must be one of {', '.join(get_args(DrainHow))}, got {how!r}")
        drains = [event for event in posted if isinstance(event, Drain)]
        leaving = {event.instance for event in drains if event.engine == engine}
        fleet = self._engines.schedulers[engine].instances.fleet
        fleet.check_drain(instance, force=force, leaving=leaving)
        return Drain(engine, instance, how)

    def check_ray(self, engine: Engine, replica: Replica) -> None:
        """Check that a replica can run in Ray if it says so. Raises ConfigError."""
        if replica.runs_in != "ray":
            return
        if engine.is_llm and "ray" not in getattr(replica.executable, "RUNS_IN", ()):
            raise ConfigError(
                f"engine {engine.name!r}: {replica.label} runs in no Ray worker; in Ray an LLM is a server "
                "process: 'server:vllm' and the like in a file, ServerProcess in Python"
            )
        if not self._ray_address:
            raise ConfigError(
                f"engine {engine.name!r}: a replica has runs_in 'ray', but the runtime has no ray_address; "
                "give the host and port of the cluster's head, as in '10.0.0.1:6379'"
            )

    def _deployment(self, engine: str) -> Deployment:
        if not isinstance(engine, str) or engine not in self._deployments:
            raise ConfigError(
                f"there is no engine {reprlib.repr(engine)}; there are {', '.join(self._deployments)}"
            )
        return self._deployments[engine]
