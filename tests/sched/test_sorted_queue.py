"""A sorted queue against a sorted list."""

from __future__ import annotations

import random

import pytest

from stretto.model.sorted_queue import SortedQueue


class Counted(float):
    """A number that counts how often such numbers are compared."""

    num_compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.num_compared += 1
        return float(self) < float(other)


@pytest.mark.parametrize("size", [3, 5000])
def test_it_is_a_sorted_list(size: int) -> None:
    draw = random.Random(size)
    queue, keys = SortedQueue[str](), list[tuple[int, int]]()
    for number in range(4 * size):
        if keys and (len(keys) > size or draw.random() < 0.4):
            key = keys.pop(draw.randrange(len(keys)))
            assert queue.remove(key) == str(key)
        else:
            keys.append((draw.randrange(50), number))
            queue.add(keys[-1], str(keys[-1]))
        assert len(queue) == len(keys)
        assert bool(queue) == bool(keys)
        if keys and (size < 10 or number % 50 == 0):  # the least of many keys takes long to find
            assert queue.first_key == min(keys)
    assert list(queue) == [str(key) for key in sorted(keys)]
    for key in sorted(keys):
        assert queue.first == queue.remove(key)
    with pytest.raises(KeyError):
        queue.remove((0, 0))


def test_comparisons_grow_with_the_logarithm() -> None:
    queue = SortedQueue[int]()
    for number in range(20_000):
        queue.add(Counted((number * 7919) % 20_000), number)
    Counted.num_compared = 0
    for number in range(100):
        queue.add(Counted(number + 0.5), number)
        queue.remove(Counted(number))
    assert Counted.num_compared < 200 * 20
