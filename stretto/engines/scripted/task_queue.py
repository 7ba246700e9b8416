"""Queue of the waiting tasks of an LLM engine: highest priority first, equal ones in order of arrival."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from stretto.tasks import LLMTask


class TaskQueue:
    """A priority queue from which a task can be removed by its id."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LLMTask]] = []
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, task: LLMTask, priority: float) -> None:
        """Add a task."""
        heappush(self._heap, (-priority, self._num_pushed, task))
        self._num_pushed += 1

    def pop(self) -> LLMTask:
        """Take out the first task."""
        return heappop(self._heap)[2]

    def discard(self, task: int) -> None:
        """Remove the task with this id, if it waits here."""
        self._heap = [entry for entry in self._heap if entry[2].id != task]
        heapify(self._heap)
