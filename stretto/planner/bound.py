"""A lower bound of the time that any plan takes: the work on all devices, and the longest path."""

from __future__ import annotations

from math import ceil, inf

import numpy as np

from stretto.planner.run_times import RunTimes

_PRECISION = 1e-4
_SLACK = 0.01
"""Part of a replica by which the interpolated table may be wrong."""


def lower_bound_s(times: RunTimes) -> float:
    """Return a lower bound of the makespan, in seconds, with the lengths of answers of the table.

    It is the least time that is no less than the longest path, and in which all devices together can do the
    work of all nodes. A node that takes longer alone than that time needs several replicas, each of which
    loads. The bound holds for plans whose replicas work no better than those of the table: splitting calls
    further never saves device time.
    """
    low_s = high_s = max(_paths_s(times).values())
    while not _fits(times, high_s):
        high_s *= 2
    while high_s - low_s > _PRECISION * high_s:
        middle_s = (low_s + high_s) / 2
        if _fits(times, middle_s):
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


def _fits(times: RunTimes, limit_s: float) -> bool:
    """Return whether all work takes no more device time than there is in some seconds."""
    return sum(_area_s(times, node, limit_s) for node in times.problem.names) <= times.num_devices * limit_s


def _area_s(times: RunTimes, node: str, limit_s: float) -> float:
    """Return the least device seconds of a node in plans that end by a time, loading included."""
    is_chain = times.problem.app.node(node).chain  # a replica with short chains may take a larger share
    least_s = inf
    for tp in times.problem.costs[node]:
        loading_s = times.loading_s(node, tp)
        share = times.share_in(node, tp, limit_s - loading_s)
        if share > 0:
            most = times.num_devices // tp
            least = 1 if is_chain else min(most, ceil(1 / share - _SLACK))
            for dp in range(least, most + 1):
                least_s = min(least_s, dp * tp * (loading_s + times.run_s(node, tp, 1 / dp)))
    return least_s


def _paths_s(times: RunTimes) -> dict[str, float]:
    """Return the least seconds until each node ends: with the fastest (dp, tp) that it could have alone, or
    after those of its inputs that all its calls wait for.
    """
    path_s: dict[str, float] = {}
    for node in times.problem.names:
        alone_s = min(
            times.loading_s(node, tp) + times.run_s(node, tp, 1 / dp) for dp, tp in times.plans(node)
        )
        inputs = [
            path_s[name] for name in times.problem.app.node(node).inputs if _takes_all(times, node, name)
        ]
        path_s[node] = max(alone_s, max(inputs, default=0.0) + times.least_s(node))
    return path_s


def _takes_all(times: RunTimes, node: str, source: str) -> bool:
    """Return whether some call of a node waits for the answer to each request of its input."""
    calls = times.problem.workload.calls
    taken, given = np.unique(calls[node].requests), np.unique(calls[source].requests)
    return len(given) > 0 and bool(np.isin(given, taken).all())
