"""The instances that run now: started and stopped as the schedulers say, addressed by engine and id; and
the wait until all are ready for the first time.

Ids are never reused, so an event of an instance that is not here any more is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from stretto.cluster.messages import InstanceId, StartInstance, StopInstance
from stretto.model.errors import EngineUnavailable, StrettoError
from stretto.model.foreign import described, typed
from stretto.model.replica import Engine
from stretto.runtime.instances import Instance, start_instance
from stretto.runtime.worker import Command, SuspendTasks
from stretto.sched.engine_events import AllSuspended, InstanceLost, InstanceReady, InstanceStopped
from stretto.sched.engines.instances import EngineInstances
from stretto.sched.messages import Event

if TYPE_CHECKING:
    from stretto.runtime.instances.ray import RayCluster

_Key: TypeAlias = tuple[str, InstanceId]
_ENDS_SUSPENDING = (AllSuspended, InstanceLost)


class RunningInstances:
    """The running instances of a runtime: starts and stops them, sends them commands, and passes their events
    on.

    Events go to `post`, on the event loop. `follows_prefixes` says of an engine whether its placement policy
    sends prompts where their prefixes are held.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        post: Callable[[Event], None],
        loop: asyncio.AbstractEventLoop,
        follows_prefixes: Callable[[str], bool],
        cluster: RayCluster | None = None,
    ) -> None:
        self._engines = engines
        self._follows_prefixes = follows_prefixes
        self._post = post
        self._loop = loop
        self._cluster = cluster
        self._running: dict[_Key, Instance] = {}
        self._closing: dict[Instance, asyncio.Task[None]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._suspending: dict[_Key, asyncio.Event] = {}

    def start(self, action: StartInstance) -> None:
        """Start an instance as the schedulers have asked; if that fails, post the event `InstanceLost`."""
        key = action.engine, action.instance

        def post(event: Event) -> None:
            if key in self._running:
                if isinstance(event, _ENDS_SUSPENDING):
                    self._receive(key, event)
                else:
                    self._post(event)
            else:  # from within `start_instance`
                self._loop.call_soon(self._receive, key, event)

        try:
            engine = self._engines[action.engine]
            self._running[key] = start_instance(
                engine,
                action.instance,
                action.replica,
                post,
                self._cluster,
                follows_prefixes=self._follows_prefixes(action.engine),
            )
        except Exception as error:
            self._post(InstanceLost(*key, typed(error)))

    def stop(self, action: StopInstance) -> None:
        """End an instance in the way that the action says, without waiting for it; post `InstanceStopped`
        when it has ended.

        Until then its events are passed on. One that is suspended first ends the step that is under way,
        however long that takes, unless it is killed meanwhile, as one that is silent for too long. If the
        action is to kill it, its events are ignored at once, and its end is not reported.
        """
        key = action.engine, action.instance
        instance = self._running.get(key)
        if instance is None:
            return
        if action.how == "kill":
            del self._running[key]
            instance.kill()
            self._close(instance)
            self._end_suspending(key)
        else:
            if action.how == "suspend":
                self._suspending[key] = asyncio.Event()
                self.send(*key, SuspendTasks())
            task = self._loop.create_task(self._stop(key, instance))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    def send(self, engine: str, instance: InstanceId, command: Command) -> None:
        """Pass a command to an instance; nothing happens if it runs no more.

        If the instance cannot take the command, it is reported as lost.
        """
        key = engine, instance
        running = self._running.get(key)
        if running is None:
            return
        try:
            running.send(command)
        except Exception as error:
            lost = EngineUnavailable(f"{engine}/{instance} takes no work: {described(error)}")
            lost.__cause__ = error
            self._receive(key, InstanceLost(*key, lost))

    async def close(self) -> None:
        """End every instance. An instance that cannot close does not keep the others open."""
        for key in list(self._suspending):
            self._end_suspending(key)
        for instance in self._running.values():
            self._close(instance)
        self._running.clear()
        self._cluster = None
        await asyncio.gather(*self._closing.values(), *self._stopping, return_exceptions=True)

    def _receive(self, key: _Key, event: Event) -> None:
        if isinstance(event, _ENDS_SUSPENDING):
            self._end_suspending(key)
        if key not in self._running or isinstance(event, AllSuspended):
            return
        if isinstance(event, InstanceLost):
            self._close(self._running.pop(key))
        self._post(event)

    def _end_suspending(self, key: _Key) -> None:
        if (has_ended := self._suspending.get(key)) is not None:
            has_ended.set()

    async def _stop(self, key: _Key, instance: Instance) -> None:
        if (has_ended := self._suspending.get(key)) is not None:
            await has_ended.wait()
            del self._suspending[key]
        with contextlib.suppress(Exception):  # it ends all the same
            await self._close(instance)
        if self._running.pop(key, None) is not None:
            self._post(InstanceStopped(*key))

    def _close(self, instance: Instance) -> asyncio.Task[None]:
        """Return the task that closes an instance. It is begun once, whoever asks for it."""
        if (closing := self._closing.get(instance)) is None:
            closing = self._closing[instance] = self._loop.create_task(instance.close())
            closing.add_done_callback(lambda _: self._closing.pop(instance))
        return closing


def naming(engine: str, error: StrettoError) -> StrettoError:
    """Return a copy of an error, of the same type, whose message begins with the name of the engine."""
    named = error.changed(message=f"engine {engine!r}: {error.message}")
    named.__cause__ = error
    return named


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
