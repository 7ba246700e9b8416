"""A lower bound of the time that any plan takes: the work on all devices, and the longest path."""

from __future__ import annotations

import numpy as np

from stretto.planner.run_times import RunTimes


def lower_bound_s(times: RunTimes) -> float:
    """Return a lower bound of the makespan, in seconds, with the lengths of answers of the table.

    Each node is given the (dp, tp) that takes the least device time, for the area; and the fastest (dp, tp)
    that it could have alone, for the path along its inputs. The bound holds for plans whose replicas work no
    better than those of the table: splitting calls further never saves device time.
    """
    area_s = 0.0
    path_s: dict[str, float] = {}
    for node in times.problem.names:
        plans = {
            (dp, tp): times.loading_s(node, tp) + times.run_s(node, tp, 1 / dp)
            for dp, tp in times.plans(node)
        }
        area_s += min(seconds * dp * tp for (dp, tp), seconds in plans.items())
        inputs = [
            path_s[name] for name in times.problem.app.node(node).inputs if _takes_all(times, node, name)
        ]
        path_s[node] = max(min(plans.values()), max(inputs, default=0.0) + times.least_s(node))
    return max(area_s / times.num_devices, *path_s.values())


def _takes_all(times: RunTimes, node: str, source: str) -> bool:
    """Return whether some call of a node waits for the answer to each request of its input."""
    calls = times.problem.workload.calls
    taken, given = np.unique(calls[node].requests), np.unique(calls[source].requests)
    return len(given) > 0 and bool(np.isin(given, taken).all())
