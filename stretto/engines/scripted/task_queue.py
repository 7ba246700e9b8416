"""Queue of the waiting tasks of an LLM engine: smallest rank first, equal ones in order of arrival."""

from __future__ import annotations

from stretto.model.sorted_queue import SortedQueue
from stretto.model.tasks import LLMTask


class TaskQueue:
    """The queue of an LLM engine's waiting tasks, sorted by rank (smallest first, then by arrival); any can
    be removed by id.
    """

    def __init__(self) -> None:
        self._sorted = SortedQueue[LLMTask]()
        self._keys: dict[int, tuple[tuple[float, ...], int]] = {}
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Add a task to the waiting ones, at the place that its rank (smallest first) gives it."""
        self._keys[task.id] = key = rank, self._num_pushed
        self._sorted.add(key, task)
        self._num_pushed += 1

    def pop(self) -> LLMTask:
        """Remove and return the task with the smallest rank."""
        task = self._sorted.first
        self.discard(task.id)
        return task

    def take_all(self) -> list[LLMTask]:
        """Remove all tasks, and return them in the order in which they would have started."""
        return [self.pop() for _ in range(len(self))]

    def discard(self, task: int) -> LLMTask | None:
        """Remove the task with this id and return it; None if it is not in the queue."""
        key = self._keys.pop(task, None)
        return None if key is None else self._sorted.remove(key)

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Change the rank (priority; smallest first) of the task with this id; ignored if it is not in the
        queue.
        """
        if task in self._keys:
            _, number = self._keys[task]
            waiting = self._sorted.remove(self._keys[task])
            self._keys[task] = key = rank, number
            self._sorted.add(key, waiting)
