"""An instance on a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading

from stretto.runtime.instances.instance import Post
from stretto.runtime.worker import CloseEngine, Command, Job, serve

CLOSE_TIMEOUT_S = 2.0


class ThreadInstance:
    """An instance of an engine that runs on a thread of its own.

    A thread that hangs when the instance is closed is left running, as a daemon.
    """

    def __init__(self, job: Job, post: Post) -> None:
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        name = f"{job.engine}/{job.instance}"
        self._thread = threading.Thread(target=serve, args=(job, self._inbox, post), name=name, daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        """Hand a command (such as to run a batch) to the thread, without waiting for anything."""
        self._inbox.put(command)

    async def close(self) -> None:
        """Ask the thread to close its engine, and wait until it has ended or a time limit has passed."""
        self._inbox.put(CloseEngine())
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    def kill(self) -> None:
        """Do nothing: Python cannot end a thread by force."""
