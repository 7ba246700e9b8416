"""The process in which an event loop runs. A fork copies objects and no threads, so the copy of an event loop
in a child process never runs, and waiting for it would never end.
"""

from __future__ import annotations

import os

from stretto.model.errors import UserError

_pid = os.getpid()


def _note_fork() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


class HomeProcess:
    """The process in which an object was started, which alone can use it.

    A check asks the system for nothing: Python tells of each fork.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = _pid

    def check(self) -> None:
        """Check that the calling process is this one.

        Raises:
            UserError: it is a fork of it.
        """
        if _pid != self._pid:
            raise UserError(
                f"{self._what} was started in process {self._pid} and cannot be used in its fork {_pid}, "
                "which has none of its threads; make a new one in the child, or start children with 'spawn'"
            )
