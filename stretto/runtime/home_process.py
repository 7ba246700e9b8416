"""The process in which an event loop runs. A fork copies objects and no threads, so the copy of an event loop
in a child process never runs, and waiting for it would never end.
"""

from __future__ import annotations

import os

from stretto.model.errors import UserError


class HomeProcess:
    """The process in which an object was started, which alone can use it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    def check(self) -> None:
        """Check that the calling process is this one.

        Raises:
            UserError: it is a fork of it.
        """
        if (pid := os.getpid()) != self._pid:
            raise UserError(
                f"{self._what} was started in process {self._pid} and cannot be used in its fork {pid}, "
                "which has none of its threads; make a new one in the child, or start children with 'spawn'"
            )
