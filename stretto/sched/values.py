"""The values that flow through one query's graph, by id: each is set once, and freed after its last
reader.
"""

from __future__ import annotations


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()
"""Placeholder for a value or result that is still to come. (`None` and `ABSENT` are values.)"""


class Values:
    """The values that flow through one query's graph.

    Each is kept until its last user has left; without users it is not even set.
    """

    def __init__(self) -> None:
        self._values: dict[int, object] = {}
        self._num_users: dict[int, int] = {}
        self._num_ids = 0

    def __getitem__(self, value_id: int) -> object:
        return self._values.get(value_id, UNSET)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, count: int) -> range:
        """Return the ids of `count` new values. Ids are never reused, so that a late message finds
        nothing.
        """
        first = self._num_ids
        self._num_ids += count
        return range(first, self._num_ids)

    def use(self, value_id: int, count: int = 1) -> None:
        """Add `count` users (readers) of a value, which is kept until all have left."""
        self._num_users[value_id] = self._num_users.get(value_id, 0) + count

    def leave(self, value_id: int) -> None:
        """Remove one user (reader) of a value, which is freed when it was the last one."""
        num_users = self._num_users[value_id] - 1
        if num_users:
            self._num_users[value_id] = num_users
        else:
            del self._num_users[value_id]
            self._values.pop(value_id, None)

    def is_used(self, value_id: int) -> bool:
        """Return whether a value still has users (readers)."""
        return value_id in self._num_users

    def set(self, value_id: int, value: object) -> None:
        """Set a value; if it has no users (readers), nothing is kept."""
        if value_id in self._num_users:
            self._values[value_id] = value
