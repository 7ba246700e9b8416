"""An instance on a thread of its own, and the queues between it and the event loop.

A thread waits for its queue with a read, and an event loop as for any other file.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from typing import Generic, TypeVar

from stretto.runtime.instances.instance import Post
from stretto.runtime.worker import CloseEngine, Command, InstanceJob, StoppedTasks, StopTask, run_instance
from stretto.sched.messages import Event

T = TypeVar("T")

CLOSE_TIMEOUT_S = 2.0
_LAST_WAIT_S = 5.0
_left: set[threading.Thread] = set()
"""Threads that were left running, as they did not end in time."""
_ALL_WAKE_UPS = 4096
"""Bytes that one read takes from the pipe: more than ever wait there in practice."""


@atexit.register
def _wait_for_left() -> None:
    """Give threads that were left running some time more: one that is in a step of torch when the interpreter
    ends makes the whole process abort, though all answers are there.
    """
    until_s = time.monotonic() + _LAST_WAIT_S
    for thread in _left:
        thread.join(max(0.0, until_s - time.monotonic()))


class ThreadInstance:
    """An instance of an engine that runs on a thread of its own.

    A thread that hangs when the instance is closed is left running, as a daemon. The end of the process waits
    some seconds for it.
    """

    def __init__(self, job: InstanceJob, post: Post) -> None:
        self._post = post
        self._commands: Mailbox[Command] = Mailbox()
        self._events: Mailbox[Event] = Mailbox()
        self._loop = asyncio.get_running_loop()
        self._stopped = None if job.is_llm else StoppedTasks()
        name = f"{job.engine}/{job.instance}"
        arguments = (job, self._commands, self._events.put, self._stopped)
        self._thread = threading.Thread(target=run_instance, args=arguments, name=name, daemon=True)
        self._thread.start()
        self._loop.add_reader(self._events.fileno(), self._receive)

    def send(self, command: Command) -> None:
        """Hand a command to the thread, without waiting for anything."""
        if self._stopped is not None and isinstance(command, StopTask):
            self._stopped.add(command.task)  # the thread reads no commands while it runs a batch
        else:
            self._commands.put(command)

    async def close(self) -> None:
        """Ask the thread to close its engine, and wait until it has ended or a time limit has passed."""
        self._commands.put(CloseEngine())
        try:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
        finally:
            if self._thread.is_alive():
                _left.add(self._thread)
            self._loop.remove_reader(self._events.fileno())
        for event in self._events.take():
            self._post(event)

    def kill(self) -> None:
        """Do nothing: Python cannot end a thread by force."""

    def _receive(self) -> None:
        for event in self._events.take_woken():
            self._post(event)


class Mailbox(Generic[T]):
    """A queue with one sending and one receiving thread. Items arrive in the order in which they were put.

    The receiver is woken by a pipe. It is written to only if the queue was empty, so that a receiver that is
    awake costs the sender no call to the system.

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
