"""When replicas are ready that start while others do: the disk reads the weights of one model at a time.

The first start of a model may have to read its weights from the disk. Later ones find them in the page cache,
which is taken to have room for all models. Only reading is shared: processes begin, and devices are filled,
side by side.
"""

from __future__ import annotations

from bisect import insort

from stretto.planner.application import model_name
from stretto.planner.problem import Problem


class Starts:
    """The starts of one carried-out plan.

    Starts may be asked for in any order; one that is asked for later takes the gaps that others leave.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._in_memory_s: dict[str, float] = {}
        self._reads: list[tuple[float, float]] = []

    def ready_s(self, model: str, tp: int, start_s: float) -> float:
        """Return when a replica that starts at `start_s` seconds serves, and note its reading."""
        start = self._problem.costs[model][tp].start
        ready_s = start_s + start.seconds
        if not start.disk_s:
            return ready_s
        begin_s = ready_s - start.reading_s
        name = model_name(model)
        known_s = self._in_memory_s.get(name)
        if known_s is None or known_s > max(ready_s, begin_s + start.disk_s):
            read_s = self._read(begin_s, start.disk_s)
            known_s = read_s if known_s is None else min(known_s, read_s)
            self._in_memory_s[name] = known_s
        return max(ready_s, known_s)

    def _read(self, begin_s: float, seconds: float) -> float:
        """Let the disk read for some seconds, from `begin_s` on, while it is idle. Returns when it ends."""
        left_s, now_s = seconds, begin_s
        taken: list[tuple[float, float]] = []
        for busy_from_s, busy_until_s in self._reads:
            if busy_until_s <= now_s:
                continue
            gap_s = min(left_s, busy_from_s - now_s)
            if gap_s > 0:
                taken.append((now_s, now_s + gap_s))
                left_s -= gap_s
            if left_s <= 0:
                break
            now_s = busy_until_s
        if left_s > 0:
            taken.append((now_s, now_s + left_s))
        for one in taken:
            insort(self._reads, one)
        return taken[-1][1]
