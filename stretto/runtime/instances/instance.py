"""The interface of an instance, wherever it runs, to the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from stretto.runtime.worker import Command
from stretto.sched.messages import Event

Post: TypeAlias = Callable[[Event], None]
"""A function to which an instance passes its events, on the event loop."""


class Instance(Protocol):
    """The interface of one running instance of a replica (a started copy of an engine), wherever it runs.

    Its first event is `InstanceReady`, or `InstanceLost` if its engine could not be constructed; after that
    it ignores commands.
    """

    def send(self, command: Command) -> None:
        """Hand a command to the instance, without waiting for anything."""
        ...

    async def close(self) -> None:
        """End the instance, however busy it is, and wait until it has ended.

        Events that it still posts are ignored.
        """
        ...

    def kill(self) -> None:
        """End what can be ended of the instance at once, without waiting; `close` must be called
        afterwards.
        """
        ...
