"""The values of one query, by id: set once, and let go after their last reader."""

from __future__ import annotations


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()
"""In place of a value or result that is still to come. (`None` and `ABSENT` are values.)"""


class Values:
    """A value is kept as long as somebody uses it. One that nobody uses is not kept when it is set."""

    def __init__(self) -> None:
        self._values: dict[int, object] = {}
        self._num_users: dict[int, int] = {}
        self._num_ids = 0

    def __getitem__(self, value_id: int) -> object:
        return self._values.get(value_id, UNSET)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, count: int) -> range:
        """The ids of so many new values. Ids are never used again: whatever comes late finds nothing."""
        first = self._num_ids
        self._num_ids += count
        return range(first, self._num_ids)

    def use(self, value_id: int, count: int = 1) -> None:
        """Note that so many more will read a value."""
        self._num_users[value_id] = self._num_users.get(value_id, 0) + count

    def leave(self, value_id: int) -> None:
        """Somebody will not read a value any more."""
        num_users = self._num_users[value_id] - 1
        if num_users:
            self._num_users[value_id] = num_users
        else:
            del self._num_users[value_id]
            self._values.pop(value_id, None)

    def is_used(self, value_id: int) -> bool:
        """Whether somebody may still read a value."""
        return value_id in self._num_users

    def set(self, value_id: int, value: object) -> None:
        """A value has come."""
        if value_id in self._num_users:
            self._values[value_id] = value
