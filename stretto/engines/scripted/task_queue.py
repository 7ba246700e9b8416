"""The tasks that wait in an LLM engine: smallest rank first, and among equals the first come."""

from __future__ import annotations

from stretto.sched.orders.sorted_queue import SortedQueue
from stretto.tasks import LLMTask


class TaskQueue:
    """Tasks by rank, each of which can be found by its id."""

    def __init__(self) -> None:
        self._sorted = SortedQueue[LLMTask]()
        self._keys: dict[int, tuple[tuple[float, ...], int]] = {}
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Add a task."""
        self._keys[task.id] = key = rank, self._num_pushed
        self._sorted.add(key, task)
        self._num_pushed += 1

    def pop(self) -> LLMTask:
        """Take the task that goes first."""
        task = self._sorted.first
        self.discard(task.id)
        return task

    def take_all(self) -> list[LLMTask]:
        """Take all tasks out, in the order in which they would go."""
        return [self.pop() for _ in range(len(self))]

    def discard(self, task: int) -> LLMTask | None:
        """Take the task with this id out, if it waits here."""
        key = self._keys.pop(task, None)
        return None if key is None else self._sorted.remove(key)

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Give the task with this id another rank, if it waits here."""
        if task in self._keys:
            _, number = self._keys[task]
            waiting = self._sorted.remove(self._keys[task])
            self._keys[task] = key = rank, number
            self._sorted.add(key, waiting)
