"""An instance on a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading

from stretto.runtime.instances.instance import Post
from stretto.runtime.worker import CloseEngine, Command, Job, serve

CLOSE_TIMEOUT_S = 2.0


class ThreadInstance:
    """An instance that runs an engine on a thread of its own.

    A thread that hangs is left behind, as a daemon.
    """

    def __init__(self, job: Job, post: Post) -> None:
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        name = f"{job.engine}/{job.instance}"
        self._thread = threading.Thread(target=serve, args=(job, self._inbox, post), name=name, daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    async def close(self) -> None:
        self._inbox.put(CloseEngine())
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    def kill(self) -> None:
        """Do nothing: Python cannot end a thread."""
