"""A queue from one thread to another that wakes the receiver by a pipe.

A thread waits for it with a read, and an event loop as for any other file. The pipe is written to only if the
queue was empty, so that a receiver that is awake costs the sender no call to the system.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

_ALL_WAKE_UPS = 4096
"""Bytes that one read takes from the pipe: more than ever wait there in practice."""


class Mailbox(Generic[T]):
    """A queue with one sending and one receiving thread. Items arrive in the order in which they were put.

    The pipe is closed when neither thread refers to the mailbox any more, as a thread that hangs may use it
    late.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        weakref.finalize(self, _close, self._reading, self._writing)

    def fileno(self) -> int:
        """Return the file that can be read when items may be there."""
        return self._reading

    def put(self, item: T) -> None:
        """Add an item, without waiting for anything."""
        self._items.append(item)
        if len(self._items) == 1:  # else the receiver is awake, or is being woken
            with contextlib.suppress(BlockingIOError):  # so many wake-ups wait that one more says nothing
                os.write(self._writing, b"\0")

    def get(self) -> T:
        """Wait for an item, and return it."""
        while not self._items:
            os.read(self._reading, _ALL_WAKE_UPS)
        return self._items.popleft()

    def empty(self) -> bool:
        """Return whether no item waits, so that `get` would wait for one."""
        return not self._items

    def take_woken(self) -> list[T]:
        """Return all items. To be called when the file can be read; else it waits."""
        os.read(self._reading, _ALL_WAKE_UPS)
        return self.take()

    def take(self) -> list[T]:
        """Return all items that are there."""
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items


def _close(*files: int) -> None:
    for file in files:
        os.close(file)
