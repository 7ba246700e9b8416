"""The values that flow through one query's graph, by id: each is set once, and freed after its last
reader.
"""

from __future__ import annotations

from collections.abc import Mapping


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()
"""Placeholder for a value or result that is still to come. (`None` and `ABSENT` are values.)"""


class Values(dict[int, object]):
    """The values that flow between the steps of one query, by id; `UNSET` for those that are still to come.

    Each value is kept until its last user has left; a value without users is not kept at all.

    Attributes:
        num_users: number of users of each value that has some.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_users: dict[int, int] = {}
        self._num_ids = 0

    def __missing__(self, value_id: int) -> object:
        return UNSET

    def add(self, count: int) -> range:
        """Make `count` new values, not set yet; return their ids. Ids are never reused, so that a late
        message finds nothing.
        """
        first = self._num_ids
        self._num_ids += count
        return range(first, self._num_ids)

    def use(self, value_id: int, count: int = 1) -> None:
        """Register `count` more users of a value, which is kept until all have left."""
        self.num_users[value_id] = self.num_users.get(value_id, 0) + count

    def use_all(self, counts: Mapping[int, int]) -> None:
        """Add users of many values at once: `counts` maps the id of a value to how many more will
        read it. A value is freed when its last user has left.
        """
        before, self.num_users = self.num_users, dict(counts)
        for value_id, count in before.items():
            self.use(value_id, count)

    def leave(self, value_id: int) -> None:
        """Remove one user of a value, which is freed when it was the last one."""
        num_users = self.num_users[value_id] - 1
        if num_users:
            self.num_users[value_id] = num_users
        else:
            del self.num_users[value_id]
            self.pop(value_id, None)

    def is_used(self, value_id: int) -> bool:
        """Return whether a value still has users, so that it is kept."""
        return value_id in self.num_users

    def has_one_user(self, value_id: int) -> bool:
        """Return whether a value has exactly one user."""
        return self.num_users.get(value_id) == 1

    def set(self, value_id: int, value: object) -> None:
        """Set a value, for its users to read; if it has none, nothing is kept."""
        if value_id in self.num_users:
            self[value_id] = value
