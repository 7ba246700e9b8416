"""Looks at the loads that workers tell of in their `/metrics`, while several requests run there."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic

from stretto.engines.openai_server.metrics import ServerLoad, read_load
from stretto.model.errors import BadReply, EngineFailure
from stretto.router.front import Front
from stretto.router.messages import WorkerId
from stretto.router.question import ask_worker
from stretto.wire import paths

_EVERY_S = 2.0
_SILENT_S = 60.0
"""Seconds until a worker that tells nothing of its load is asked again."""
_LEAST_RUNNING = 2
"""Requests at a worker from which on it may have some that wait."""


class LoadChecks:
    """The looks at all workers, in the running event loop."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._next_s: dict[WorkerId, float] = {}
        self._running: dict[WorkerId, asyncio.Task[None]] = {}
        front.on_worker_gone.append(self.forget)

    def sweep(self) -> None:
        """Look at the workers whose turn it is."""
        view, now_s = self._front.router_state.view, monotonic()
        for worker in view.workers():
            is_due = now_s >= self._next_s.get(worker.id, 0.0) and worker.id not in self._running
            if is_due and worker.state == "serving" and view.num_running(worker.id) >= _LEAST_RUNNING:
                task = asyncio.create_task(self.look(worker.id))
                self._running[worker.id] = task
                task.add_done_callback(partial(self._ended, worker.id))

    async def look(self, worker: WorkerId) -> None:
        """Ask a worker for its load, and tell the state machine."""
        load = await self._load(worker)
        now_s = monotonic()
        self._next_s[worker] = now_s + (_SILENT_S if load is None else _EVERY_S)
        if load is not None:
            membership = self._front.router_state.membership
            self._front.act(membership.looked_at(worker, load.num_running, load.num_waiting, now_s))

    def forget(self, worker: WorkerId) -> None:
        """End the looks at a worker that is gone."""
        self._next_s.pop(worker, None)
        if (task := self._running.pop(worker, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """End all looks."""
        tasks = list(self._running.values())
        for worker in list(self._running):
            self.forget(worker)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, worker: WorkerId) -> ServerLoad | None:
        """Return the load of a worker; None if it does not tell."""
        front = self._front
        try:
            status, body = await ask_worker(front.links[worker], front.config.health_timeout_s, paths.METRICS)
            if status != 200:
                return None
            return await front.readers.run_if_large(
                len(body), lambda: read_load(body.decode(errors="replace"))
            )
        except (BadReply, EngineFailure):
            return None

    def _ended(self, worker: WorkerId, task: asyncio.Task[None]) -> None:
        if self._running.get(worker) is task:
            del self._running[worker]
