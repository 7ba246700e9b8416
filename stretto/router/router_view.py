"""What is seen of a router: its workers, what waits, and what must be read of a request."""

from __future__ import annotations

from itertools import chain, islice

from stretto.router.held_blocks import HeldByWorkers
from stretto.router.messages import WaitingPicture, WorkerId
from stretto.router.open_requests import TURN, OpenRequests
from stretto.router.workers import Worker


class RouterView:
    """What others see of a router's state. Nothing here changes it."""

    def __init__(self, requests: OpenRequests, caches: HeldByWorkers) -> None:
        self._open = requests
        self._caches = caches

    def workers(self) -> list[Worker]:
        """Return the workers that are not gone."""
        return list(self._open.workers)

    def worker(self, worker: WorkerId) -> Worker | None:
        """Return a worker; None if it is gone or never was."""
        return self._open.workers.get(worker)

    def num_running(self, worker: WorkerId) -> int:
        """Return how many requests run at a worker."""
        return len(self._open.at(worker))

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait in the router, for room or for their turn."""
        return len(self._open.waiting) + len(self._open.room)

    @property
    def num_held(self) -> int:
        """Number of those that wait for room."""
        return len(self._open.room)

    def claimed(self, worker: WorkerId, now_s: float) -> tuple[int, int | None]:
        """Return how many tokens programs take of a worker's KV memory, and how many it is believed to hold;
        None if that is not known.
        """
        return self._open.room.claimed(worker, now_s)

    def waiting(self, limit: int) -> list[WaitingPicture]:
        """Return what is shown of the requests that wait, at most `limit`: those that are held first."""
        found: list[WaitingPicture] = []
        for ticket in islice(chain(self._open.room, self._open.waiting.names()), limit):
            client = self._open.clients[ticket]
            is_held = ticket in self._open.room
            why = self._open.room.reason(ticket) if is_held else TURN
            since_s = client.arrived_s if is_held else client.since_s
            found.append(
                WaitingPicture(ticket, client.request.model, client.request.program.name, since_s, why)
            )
        return found

    @property
    def num_clients(self) -> int:
        """Number of requests at the router, running or waiting."""
        return len(self._open.clients)

    @property
    def uses_keys(self) -> bool:
        """Whether keys of prompts are read, by the placement policy or because memory is short."""
        return self._open.loads.uses_keys or self._open.room.wants_keys

    @property
    def cuts_priority(self) -> bool:
        """Whether a worker knows no field `priority`."""
        return self._open.workers.cuts_priority

    def is_listed(self, model: str) -> bool:
        """Return whether a worker that takes requests lists a model."""
        return self._open.eligible.is_listed(model)

    @property
    def has_reports(self) -> bool:
        """Whether the policy reads keys and a worker has reported what its prefix cache holds."""
        return self._open.loads.uses_keys and bool(self._caches)
