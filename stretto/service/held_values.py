"""The values that answers are being written from, as far as they count against a budget of bytes."""

from __future__ import annotations

from stretto.http.byte_budget import ByteBudget


class HeldValues:
    """The values of one tenant that its requests keep alive. One that many requests read counts once."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held: dict[int, tuple[object, int, int]] = {}
        """Each value by its identity, with its bytes and the number of its readers."""

    def hold(self, value: object, num_bytes: int) -> bool:
        """Add a reader of a value, which counts with `num_bytes` bytes; return False if that is too much."""
        _, counted_bytes, num_readers = self._held.get(id(value), (value, num_bytes, 0))
        if not num_readers and not self._budget.take(num_bytes, 0):
            return False
        self._held[id(value)] = value, counted_bytes, num_readers + 1
        return True

    def release(self, value: object) -> None:
        """Remove a reader of a value; after the last one, the value does not count any more."""
        _, num_bytes, num_readers = self._held[id(value)]
        if num_readers > 1:
            self._held[id(value)] = value, num_bytes, num_readers - 1
        else:
            del self._held[id(value)]
            self._budget.count(-num_bytes)
