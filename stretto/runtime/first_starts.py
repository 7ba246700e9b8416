"""The wait until all replicas of a runtime are ready for the first time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from stretto.cluster.messages import StopInstance
from stretto.runtime.running import naming
from stretto.sched.engine_events import InstanceLost, InstanceReady
from stretto.sched.engines.instances import EngineInstances
from stretto.sched.messages import Event


class FirstStarts:
    """Counts the replicas that are ready, until all are. The first that cannot start, or takes longer than
    its `start_timeout_s`, ends the wait.

    Attributes:
        opened: done when all are ready; it has the error of the first that is not.
    """

    def __init__(
        self, num_starting: int, instances: Mapping[str, EngineInstances], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self._num_starting = num_starting
        self._instances = instances
        if not num_starting:
            self.opened.set_result(None)

    def watch(self, event: Event | StopInstance) -> None:
        """Note an event that an instance has sent, or the end of one that is killed."""
        if self.opened.done():
            return
        match event:
            case InstanceReady():
                self._num_starting -= 1
                if self._num_starting == 0:
                    self.opened.set_result(None)
            case StopInstance(engine, _, "kill"):
                error = self._instances[engine].fleet.last_error
                assert error is not None
                self.fail(naming(engine, error))
            case InstanceLost(engine, _, error):
                self.fail(naming(engine, error))

    def fail(self, error: Exception) -> None:
        """End the wait with an error, unless it is over."""
        if not self.opened.done():
            self.opened.set_exception(error)
