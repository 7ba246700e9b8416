"""A sorted list of items that stays fast when it is long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_MOST = 1024


class SortedQueue(Generic[Item]):
    """Items by key, smallest key first; no two have the same key.

    `add` and `remove` compare O(log n) keys and move at most `_MOST` of them. Keys and items lie in blocks of
    bounded size; `_last_keys` has the largest key of each block.
    """

    def __init__(self) -> None:
        self._keys: list[list[Any]] = []
        self._items: list[list[Item]] = []
        self._last_keys: list[Any] = []
        self._num_items = 0

    def __len__(self) -> int:
        return self._num_items

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(self._items)

    @property
    def first(self) -> Item:
        """The item of the smallest key. Raises IndexError if there is none."""
        return self._items[0][0]

    @property
    def first_key(self) -> Any:
        """The smallest key. Raises IndexError if there is none."""
        return self._keys[0][0]

    def add(self, key: Any, item: Item) -> None:
        """Put an item in its place."""
        self._num_items += 1
        if not self._keys:
            self._keys.append([key])
            self._items.append([item])
            self._last_keys.append(key)
            return
        place = min(bisect_left(self._last_keys, key), len(self._keys) - 1)
        keys = self._keys[place]
        at = bisect_left(keys, key)
        keys.insert(at, key)
        self._items[place].insert(at, item)
        self._last_keys[place] = keys[-1]
        if len(keys) > _MOST:
            self._split(place)

    def remove(self, key: Any) -> Item:
        """Take out the item of a key. Raises KeyError if there is none."""
        place = bisect_left(self._last_keys, key)
        if place == len(self._keys):
            raise KeyError(key)
        keys = self._keys[place]
        at = bisect_left(keys, key)
        if keys[at] != key:
            raise KeyError(key)
        del keys[at]
        item = self._items[place].pop(at)
        self._num_items -= 1
        if keys:
            self._last_keys[place] = keys[-1]
        else:
            del self._keys[place], self._items[place], self._last_keys[place]
        return item

    def _split(self, place: int) -> None:
        keys, items = self._keys[place], self._items[place]
        half = len(keys) // 2
        self._keys[place : place + 1] = [keys[:half], keys[half:]]
        self._items[place : place + 1] = [items[:half], items[half:]]
        self._last_keys[place : place + 1] = [keys[half - 1], keys[-1]]
