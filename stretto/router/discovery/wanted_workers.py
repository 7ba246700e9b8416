"""Which workers to add, change and drain, so that there are those that sources want: a state machine without
IO.

- A worker is known by its server and the path of its API. Of several entries for one server the first counts.
- What a source wants no more drains: its open requests and streams are answered.
- A worker whose settings have changed drains, and another one takes its place. A new `num_slots` alone
  changes in place.
- A worker that somebody else has removed stays away until its source has left it out once.
- A worker that cannot be added, for example because the settings have it already, is tried again at each
  telling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from stretto.router.messages import WorkerId
from stretto.router.worker_config import WorkerConfig
from stretto.router.worker_url import server_of

Server: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class AddWorker:
    """Add a worker, and tell `added`."""

    source: str
    config: WorkerConfig


@dataclass(frozen=True, slots=True)
class ResizeWorker:
    """Let another number of requests run at a worker."""

    worker: WorkerId
    num_slots: int


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Give a worker no more requests, if it is still there."""

    worker: WorkerId


WorkerChange: TypeAlias = AddWorker | ResizeWorker | DrainWorker


@dataclass(slots=True)
class WantedWorkers:
    """The workers that sources want, and those that were added for them."""

    _added: dict[str, dict[Server, tuple[WorkerId, WorkerConfig]]] = field(default_factory=dict)

    def wanted(self, source: str, configs: Sequence[WorkerConfig]) -> list[WorkerChange]:
        """Handle what a source wants, which is all of it."""
        added = self._added.setdefault(source, {})
        wanted: dict[Server, WorkerConfig] = {}
        for config in configs:
            wanted.setdefault(server_of(config.url), config)
        changes: list[WorkerChange] = []
        for server, (worker, config) in list(added.items()):
            new = wanted.get(server)
            if new == config:
                continue
            if new is not None and replace(new, num_slots=config.num_slots) == config:
                added[server] = worker, new
                changes.append(ResizeWorker(worker, new.num_slots))
            else:
                del added[server]
                changes.append(DrainWorker(worker))
        return changes + [
            AddWorker(source, config) for server, config in wanted.items() if server not in added
        ]

    def added(self, change: AddWorker, worker: WorkerId) -> None:
        """Note that a worker was added."""
        self._added[change.source][server_of(change.config.url)] = worker, change.config
