"""What the driver needs of an instance, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from stretto.messages import Event
from stretto.runtime.worker import Command

Post: TypeAlias = Callable[[Event], None]
"""Where an instance sends its events. It may be called from any thread."""


class Instance(Protocol):
    """One running replica.

    Its first event is `InstanceReady`, or `InstanceLost` if its engine could not be constructed; after that
    it obeys nothing.
    """

    def send(self, command: Command) -> None:
        """Hand over a command; never waits."""
        ...

    async def close(self) -> None:
        """End it, however busy it is. Events that it still posts are of no interest."""
        ...

    def kill(self) -> None:
        """End at once what can be ended at once; `close` follows."""
        ...
