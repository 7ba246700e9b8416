"""The interface of an instance to the driver, wherever the instance runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from stretto.messages import Event
from stretto.runtime.worker import Command

Post: TypeAlias = Callable[[Event], None]
"""A function to which an instance passes its events. It may be called from any thread."""


class Instance(Protocol):
    """The interface of one running replica.

    Its first event is `InstanceReady`, or `InstanceLost` if its engine could not be constructed; after that
    it obeys nothing.
    """

    def send(self, command: Command) -> None:
        """Hand over a command; never waits."""
        ...

    async def close(self) -> None:
        """End the instance, however busy it is. Events that it still posts are ignored."""
        ...

    def kill(self) -> None:
        """End what can be ended at once; `close` follows."""
        ...
