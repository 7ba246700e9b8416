"""An instance on a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time

from stretto.runtime.instances.instance import Post
from stretto.runtime.instances.mailbox import Mailbox
from stretto.runtime.worker import CloseEngine, Command, InstanceJob, StoppedTasks, StopTask, run_instance
from stretto.sched.messages import Event

CLOSE_TIMEOUT_S = 2.0
_LAST_WAIT_S = 5.0
_left: set[threading.Thread] = set()
"""Threads that were left running, as they did not end in time."""


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
