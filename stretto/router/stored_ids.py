"""Which worker keeps what clients have stored at servers, such as responses and files, by its id.

Ids are learned from the answers of workers. They are kept apart by client: an id that another client tells
leads nowhere. Of the clients that have most ids, within a factor of two, the id that was used longest ago is
forgotten first. So a client that stores very much loses its own.
"""

from __future__ import annotations

from collections import OrderedDict

from stretto.router.messages import WorkerId

_MAX_ID = 256


class StoredIds:
    """The table of what workers keep for clients.

    Args:
        most: number of ids that are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_client: dict[str, OrderedDict[str, WorkerId]] = {}
        self._by_size: list[dict[str, None]] = [{} for _ in range(64)]
        self._num = 0

    def __len__(self) -> int:
        """Return how many ids are remembered."""
        return self._num

    def learn(self, client_key: str, stored_id: str, worker: WorkerId) -> None:
        """Note that a worker keeps what has an id."""
        if not stored_id or len(stored_id) > _MAX_ID or not self._most:
            return
        ids = self._of_client.setdefault(client_key, OrderedDict())
        num_before = len(ids)
        ids[stored_id] = worker
        ids.move_to_end(stored_id)
        self._num += len(ids) - num_before
        self._sized(client_key, num_before)
        if self._num > self._most:
            self._forget_one()

    def find(self, client_key: str, stored_id: str) -> WorkerId | None:
        """Return the worker that made what has an id; None if that is not known."""
        ids = self._of_client.get(client_key)
        if ids is None or (worker := ids.get(stored_id)) is None:
            return None
        ids.move_to_end(stored_id)
        return worker

    def check_invariants(self) -> None:
        """Check the number of ids, and that each client stands by its number. For tests."""
        assert self._num == sum(map(len, self._of_client.values())) <= self._most
        for client_key, ids in self._of_client.items():
            assert ids
            assert client_key in self._by_size[len(ids).bit_length()]
        assert sum(map(len, self._by_size)) == len(self._of_client)

    def _forget_one(self) -> None:
        largest = next(clients for clients in reversed(self._by_size) if clients)
        client_key = next(iter(largest))
        ids = self._of_client[client_key]
        num_before = len(ids)
        ids.popitem(last=False)
        self._num -= 1
        self._sized(client_key, num_before)

    def _sized(self, client_key: str, num_before: int) -> None:
        """Put a client where its number of ids belongs."""
        num = len(self._of_client[client_key])
        if num.bit_length() != num_before.bit_length():
            self._by_size[num_before.bit_length()].pop(client_key, None)
            if num:
                self._by_size[num.bit_length()][client_key] = None
        if not num:
            del self._of_client[client_key]
