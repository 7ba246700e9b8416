"""Which worker keeps what clients have stored at servers, such as responses and files, by its id.

Ids are learned from the answers of workers. They are kept apart by client: an id that another client tells
leads nowhere. Which client has made it is kept too: at a door with tenants, all of whom use one key at the
workers, the worker itself would answer anybody.
"""

from __future__ import annotations

from stretto.router.messages import WorkerId
from stretto.router.per_client import PerClient

_MAX_ID = 256


class StoredIds:
    """The table of what workers keep for clients.

    Args:
        most: number of ids that are remembered.
    """

    def __init__(self, most: int) -> None:
        self._workers: PerClient[WorkerId] = PerClient(most)
        self._makers: dict[str, str] = {}

    def __len__(self) -> int:
        """Return how many ids are remembered."""
        return len(self._workers)

    def learn(self, client_key: str, stored_id: str, worker: WorkerId, *, is_made: bool = False) -> None:
        """Note that a worker keeps what has an id; `is_made` is whether the client has just made it."""
        if not stored_id or len(stored_id) > _MAX_ID:
            return
        if is_made:
            self._makers[stored_id] = client_key
        if (forgotten := self._workers.put(client_key, stored_id, worker)) is not None:
            client, name = forgotten
            if self._makers.get(name) == client:
                del self._makers[name]

    def find(self, client_key: str, stored_id: str) -> WorkerId | None:
        """Return the worker that made what has an id; None if that is not known."""
        return self._workers.get(client_key, stored_id)

    def is_of_another(self, client_key: str, stored_id: str) -> bool:
        """Return whether another client is known to have made what has an id."""
        return self._makers.get(stored_id, client_key) != client_key

    def check_invariants(self) -> None:
        """Check the table, and that only makers of ids in it are known. For tests."""
        self._workers.check_invariants()
        for stored_id, client_key in self._makers.items():
            assert self._workers.get(client_key, stored_id) is not None
