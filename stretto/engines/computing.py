"""Which instances of this process compute now, so that one of them can tell whether cores are free.

Instances on threads share the cores of the machine, but know nothing of each other. The loops that run them
(`runtime/worker.py`) note here when they compute. The cores belong to the process, and so does the note.
"""

from __future__ import annotations

import threading


class Computing:
    """The threads on which an instance of this process computes at the moment."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def begin(self) -> None:
        """Note that the instance on the calling thread computes from now on."""
        self._threads.add(threading.get_ident())

    def end(self) -> None:
        """Note that the instance on the calling thread waits for work from now on."""
        self._threads.discard(threading.get_ident())

    def is_any_but(self, thread: int) -> bool:
        """Return whether an instance computes on another thread than the one with this identity
        (`threading.get_ident`).
        """
        return not self._threads <= {thread}


COMPUTING = Computing()
"""What computes in this process."""
