"""What changes the workers of a router while it runs: its admin, and sources of workers."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from stretto.model.errors import ConfigError
from stretto.router.front import Front
from stretto.router.health import HealthChecks
from stretto.router.messages import WorkerId
from stretto.router.worker_config import WorkerConfig

if TYPE_CHECKING:
    from stretto.router.kv_feeds import KVFeeds


class WorkerChanges:
    """Changes of a router's workers.

    Args:
        feeds: returns what follows the caches of workers; raises ConfigError where its extra is missing.
    """

    def __init__(self, front: Front, checks: HealthChecks, feeds: Callable[[], KVFeeds]) -> None:
        self._front = front
        self._checks = checks
        self._feeds = feeds
        self._sources: dict[WorkerId, str] = {}
        front.on_worker_gone.append(self._forget)

    def add(self, config: WorkerConfig, source: str) -> WorkerId:
        """Add a worker, which serves when it has passed a health check.

        Args:
            source: who wants it.

        Raises:
            ConfigError: there is a worker with this address, it stands for several workers, or an extra that
                it needs is missing.
        """
        if config.is_several:
            raise ConfigError(f"worker {config.url}: dns and kubernetes have their place in the settings")
        feeds = None if config.kv_events is None else self._feeds()
        number = self._checks.add(config)
        self._sources[number] = source
        worker = self._front.router_state.view.worker(number)
        if feeds is not None and worker is not None:
            feeds.begin(worker)
        return number

    def _forget(self, worker: WorkerId) -> None:
        self._sources.pop(worker, None)

    def source_of(self, worker: WorkerId) -> str:
        """Return who wanted a worker; "settings" for one that was there from the start."""
        return self._sources.get(worker, "settings")

    def is_there(self, worker: WorkerId) -> bool:
        """Return whether a worker is there and does not drain."""
        found = self._front.router_state.view.worker(worker)
        return found is not None and found.state != "draining"

    def resize(self, worker: WorkerId, num_slots: int) -> None:
        """Let at most `num_slots` requests run at a worker at once. Raises ConfigError."""
        self._front.act(self._front.router_state.membership.resize(worker, num_slots, monotonic()))

    def drain(self, worker: WorkerId) -> str:
        """Give a worker no more requests: it is gone after its last answer. Return its URL.

        Raises:
            ConfigError: there is no such worker.
        """
        found = self._front.router_state.view.worker(worker)
        self._front.act(self._front.router_state.membership.drain(worker, monotonic()))
        return "" if found is None else found.config.url

    def remove(self, worker: WorkerId) -> None:
        """Remove a worker at once, as `Front.remove` does. Raises ConfigError."""
        self._front.remove(worker, monotonic())
