"""A lower bound of the time that any plan takes: the work on all devices, and the longest path."""

from __future__ import annotations

from stretto.planner.run_times import RunTimes


def lower_bound_s(times: RunTimes) -> float:
    """Return a lower bound of the makespan, in seconds.

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
        last_s = min(times.last_s(node, tp) for _, tp in plans)
        inputs = [path_s[name] for name in times.problem.app.node(node).inputs if name in path_s]
        path_s[node] = max(min(plans.values()), max(inputs, default=0.0) + last_s)
    return max(area_s / times.num_devices, *path_s.values())
