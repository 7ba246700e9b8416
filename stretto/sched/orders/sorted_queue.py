"""A sorted list of items that stays fast when it is long."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_MOST = 1024


class SortedQueue(Generic[Item]):
    """Items by key, smallest key first; no two have the same key.

    `add` and `remove` compare O(log n) keys and move at most `_MOST` entries. The entries lie in blocks of
    bounded size; `_last_keys` has the largest key of each block.
    """

    def __init__(self) -> None:
        self._blocks: list[list[tuple[Any, Item]]] = []
        self._last_keys: list[Any] = []
        self._num_items = 0

    def __len__(self) -> int:
        return self._num_items

    def __iter__(self) -> Iterator[Item]:
        return (item for _, item in chain.from_iterable(self._blocks))

    @property
    def first(self) -> Item:
        """The item of the smallest key. Raises IndexError if there is none."""
        return self._blocks[0][0][1]

    @property
    def first_key(self) -> Any:
        """The smallest key. Raises IndexError if there is none."""
        return self._blocks[0][0][0]

    @property
    def last_key(self) -> Any:
        """The largest key. Raises IndexError if there is none."""
        return self._last_keys[-1]

    def add(self, key: Any, item: Item) -> None:
        """Put an item in its place."""
        self._num_items += 1
        if not self._blocks:
            self._blocks.append([(key, item)])
            self._last_keys.append(key)
            return
        place = min(bisect_left(self._last_keys, key), len(self._blocks) - 1)
        block = self._blocks[place]
        insort(block, (key, item), key=_key)
        if len(block) > _MOST:
            half = len(block) // 2
            self._blocks[place : place + 1] = [block[:half], block[half:]]
            self._last_keys[place : place + 1] = [block[half - 1][0], block[-1][0]]
        else:
            self._last_keys[place] = block[-1][0]

    def remove(self, key: Any) -> Item:
        """Take out the item of a key. Raises KeyError if there is none."""
        place = bisect_left(self._last_keys, key)
        if place == len(self._blocks):
            raise KeyError(key)
        block = self._blocks[place]
        at = bisect_left(block, key, key=_key)
        if block[at][0] != key:
            raise KeyError(key)
        _, item = block.pop(at)
        self._num_items -= 1
        if block:
            self._last_keys[place] = block[-1][0]
        else:
            del self._blocks[place], self._last_keys[place]
        return item


def _key(entry: tuple[Any, object]) -> Any:
    return entry[0]
