"""A lower bound of the mean latency of many queries on engines that they share, under any schedule.

Each engine has to do the work of all queries, and the order with the least sum of end times is the one that
always goes on with what has least left: with interruptions allowed it is optimal for one machine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from benchmarks.common.query_bound import QueryBound


def least_mean_s(arrivals_s: Sequence[float], bounds: Sequence[QueryBound]) -> float:
    """Return a lower bound of the mean latency of these queries, in seconds, which no
    schedule can beat.

    It is the largest of: the mean of the queries' own bounds, and for each engine the mean if all its work
    were done shortest remaining work first, which is optimal for one machine.
    """
    means_s = [fmean(bound.seconds for bound in bounds)]
    for engine in dict.fromkeys(name for bound in bounds for name in bound.loads):
        jobs = []
        others_s = 0.0
        for arrival_s, bound in zip(arrivals_s, bounds, strict=True):
            if (load := bound.loads.get(engine)) is None:
                others_s += bound.seconds
            else:
                jobs.append((arrival_s + load.head_s, load.work_s))
                others_s += load.tail_s - arrival_s
        means_s.append((_least_sum_of_ends_s(jobs) + others_s) / len(bounds))
    return max(means_s)


def _least_sum_of_ends_s(jobs: Iterable[tuple[float, float]]) -> float:
    """Return the least sum of end times of (release, work) jobs on one machine that may interrupt them."""
    waiting: list[float] = []
    now_s = total_s = 0.0
    for release_s, work_s in [*sorted(jobs), (math.inf, 0.0)]:
        while waiting and now_s + waiting[0] <= release_s:
            now_s += heapq.heappop(waiting)
            total_s += now_s
        if waiting:
            heapq.heapreplace(waiting, waiting[0] - (release_s - now_s))
        now_s = release_s
        heapq.heappush(waiting, work_s)
    return total_s
