"""Which nodes of one model share its servers.

Servers that answer all nodes of a model are loaded once. But a long chain takes longer beside other work, so
that parts of a problem which no answers connect, as applications that are planned together, may be done
earlier with servers of their own.
"""

from __future__ import annotations

from stretto.planner.planners.moldable_list import best_list, makespan_s
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes


def best_times(problem: Problem) -> RunTimes:
    """Return the run times of a problem; where its best list is shorter, of the one with servers apart."""
    times = RunTimes(problem)
    if (other := problem.apart()) is None:
        return times
    return min(times, RunTimes(other, like=times), key=lambda one: makespan_s(one, *best_list(one)))
