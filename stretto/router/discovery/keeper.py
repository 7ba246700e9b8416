"""Keeps the workers of a router to those that its sources want."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from stretto.model.errors import ConfigError
from stretto.router.discovery.source import WorkerSource
from stretto.router.discovery.wanted_workers import AddWorker, DrainWorker, ResizeWorker, WantedWorkers
from stretto.router.worker_changes import WorkerChanges
from stretto.router.worker_config import WorkerConfig

_log = logging.getLogger(__name__)


class WorkerKeeper:
    """Follows sources of workers, in the running event loop. What they want changes the workers through
    `changes`.
    """

    def __init__(self, changes: WorkerChanges, sources: Sequence[WorkerSource]) -> None:
        self._changes = changes
        self._wanted = WantedWorkers()
        self._refused: dict[str, list[str]] = {}
        """Why workers were not added, or "", when their source last told them."""
        self._tasks = [asyncio.create_task(self._follow(source)) for source in sources]

    async def close(self) -> None:
        """Follow the sources no more; workers stay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, source: WorkerSource) -> None:
        try:
            await source.follow(partial(self.want, source.name))
        except Exception:
            _log.exception("%s is followed no more; its workers stay", source.name)

    def want(self, source: str, configs: Sequence[WorkerConfig]) -> None:
        """Add, change and drain workers, so that there are those that a source wants."""
        refused = []
        for change in self._wanted.wanted(source, configs):
            match change:
                case AddWorker():
                    refused.append(self._add(change))
                case ResizeWorker(worker, num_slots):
                    if self._changes.is_there(worker):
                        self._changes.resize(worker, num_slots)
                case DrainWorker(worker):
                    if self._changes.is_there(worker):
                        url = self._changes.drain(worker)
                        _log.info("%s: worker %s drains", source, url)

        before, self._refused[source] = self._refused.get(source, ()), refused
        for line in refused:
            if line and line not in before:
                _log.warning("a worker is not added: %s", line)

    def _add(self, change: AddWorker) -> str:
        """Add a worker; return why it was not, or ""."""
        url = change.config.url
        try:
            self._wanted.added(change, self._changes.add(change.config, change.source))
        except ConfigError as error:
            return f"{change.source}: {error.message}"
        _log.info("%s: worker %s is added", change.source, url)
        return ""
