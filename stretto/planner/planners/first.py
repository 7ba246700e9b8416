"""A valid plan at once, for those who do not want to wait for a good one."""

from __future__ import annotations

from stretto.planner.plan import Plan
from stretto.planner.planners.moldable_list import best_list, plan_of_list
from stretto.planner.problem import Problem
from stretto.planner.run_times import Effort, RunTimes

_EFFORT = Effort(most_requests=1024, few_requests=0, most_draws=1)
_NUM_TRIES = 200


def first_plan(problem: Problem) -> Plan:
    """Return the best of a few lists, with replicas on as few devices as they can have.

    At most 1,024 requests of each node are simulated, with one draw of lengths.
    """
    times = RunTimes(problem.smallest(), _EFFORT)
    return plan_of_list(times, *best_list(times, _NUM_TRIES))
