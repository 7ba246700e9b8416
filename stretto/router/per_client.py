"""A table of what is remembered for clients, of limited size, in which no client pushes out what is others'.

Of the clients that have most entries, within a factor of two, the entry that was used longest ago is
forgotten first. So a client that makes very many loses its own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class PerClient(Generic[Value]):
    """The table. Each entry has a name among those of its client.

    Args:
        most: number of entries that are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_client: dict[str, OrderedDict[str, Value]] = {}
        self._by_size: list[dict[str, None]] = [{} for _ in range(64)]
        self._num = 0

    def __len__(self) -> int:
        """Return how many entries are remembered."""
        return self._num

    def put(self, client: str, name: str, value: Value) -> tuple[str, str] | None:
        """Remember an entry, in place of one of the same name; return the client and the name of the one that
        is forgotten for it, if one is.
        """
        if not self._most:
            return client, name
        entries = self._of_client.setdefault(client, OrderedDict())
        num_before = len(entries)
        entries[name] = value
        entries.move_to_end(name)
        self._sized(client, num_before)
        return self._forget_one() if self._num > self._most else None

    def get(self, client: str, name: str) -> Value | None:
        """Return an entry, which counts as used now; None if there is none."""
        entries = self._of_client.get(client)
        if entries is None or name not in entries:
            return None
        entries.move_to_end(name)
        return entries[name]

    def pop(self, client: str, name: str) -> Value | None:
        """Return an entry and forget it; None if there is none."""
        entries = self._of_client.get(client)
        if entries is None or name not in entries:
            return None
        num_before = len(entries)
        value = entries.pop(name)
        self._sized(client, num_before)
        return value

    def check_invariants(self) -> None:
        """Check the number of entries, and that each client stands by its number. For tests."""
        assert self._num == sum(map(len, self._of_client.values())) <= self._most
        for client, entries in self._of_client.items():
            assert entries
            assert client in self._by_size[len(entries).bit_length()]
        assert sum(map(len, self._by_size)) == len(self._of_client)

    def _forget_one(self) -> tuple[str, str]:
        largest = next(clients for clients in reversed(self._by_size) if clients)
        client = next(iter(largest))
        name = next(iter(self._of_client[client]))
        self.pop(client, name)
        return client, name

    def _sized(self, client: str, num_before: int) -> None:
        """Put a client where its number of entries belongs, which was another one before."""
        num = len(self._of_client[client])
        self._num += num - num_before
        if num.bit_length() != num_before.bit_length():
            self._by_size[num_before.bit_length()].pop(client, None)
            if num:
                self._by_size[num.bit_length()][client] = None
        if not num:
            del self._of_client[client]
