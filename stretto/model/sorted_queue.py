"""A sorted list of items that stays fast when it is long."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_MOST = 1024
_last = itemgetter(-1)


class SortedQueue(Generic[Item]):
    """A queue of items sorted by key, smallest key first; no two items have the same key.

    `add` and `remove` compare O(log n) keys and move at most `_MOST` of them. Pairs of key and item lie in
    blocks of bounded size; only a queue of one block may be empty.
    """

    def __init__(self) -> None:
        self._blocks: list[list[tuple[Any, Item]]] = [[]]
        self._num_items = 0

    def __len__(self) -> int:
        return self._num_items

    def __iter__(self) -> Iterator[Item]:
        return map(itemgetter(1), chain.from_iterable(self._blocks))

    @property
    def first(self) -> Item:
        """The item with the smallest key in the queue. Raises IndexError if the queue is empty."""
        return self._blocks[0][0][1]

    @property
    def first_key(self) -> Any:
        """The smallest key of an item in the queue. Raises IndexError if the queue is empty."""
        return self._blocks[0][0][0]

    def add(self, key: Any, item: Item) -> None:
        """Add an item under a key, by which it is sorted. No other item may have that key."""
        self._num_items += 1
        place = self._place((key,))
        block = self._blocks[place]
        insort(block, (key, item))
        if len(block) > _MOST:
            half = len(block) // 2
            self._blocks[place : place + 1] = [block[:half], block[half:]]

    def remove(self, key: Any) -> Item:
        """Remove and return the item with this key. Raises KeyError if there is none."""
        pair = (key,)
        place = self._place(pair)
        block = self._blocks[place]
        at = bisect_left(block, pair)
        if at == len(block) or block[at][0] != key:
            raise KeyError(key)
        self._num_items -= 1
        item = block.pop(at)[1]
        if not block and len(self._blocks) > 1:
            del self._blocks[place]
        return item

    def _place(self, pair: tuple[Any]) -> int:
        """Return the place of the first block whose last key is not below that in `pair`, or of the last."""
        last = len(self._blocks) - 1
        return min(bisect_left(self._blocks, pair, key=_last), last) if last else 0
