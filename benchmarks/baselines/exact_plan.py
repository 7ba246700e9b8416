"""The best plan in which each node has one (dp, tp) and runs once, proved by CP-SAT of OR-tools.

All replicas of a node start and end together. That a group of devices must be aligned is left out of the
proof; the list of the nodes by start, which keeps groups aligned, may then take longer. The annealed list is
taken if it is shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.planner.plan import Plan
from stretto.planner.planners.moldable_list import best_list, makespan_s, plan_of_list, useful
from stretto.planner.planners.stages import Choice
from stretto.planner.run_times import RunTimes

_MAX_S = 60.0
_NUM_WORKERS = 8
_PARTS = 1000
"""Parts of a second in which the solver counts."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The (dp, tp) of each node, and the nodes by start.

    Attributes:
        least_s: makespan below which no such plan is, by the table of run times.
    """

    choice: Choice
    order: Sequence[str]
    least_s: float


def exact(times: RunTimes) -> Plan:
    """Return the best plan with one (dp, tp) for each node.

    Raises:
        ConfigError: OR-tools is not installed, or nothing was proved within a minute.
    """
    found = solve(times)
    plans = [plan_of_list(times, found.choice, found.order), plan_of_list(times, *best_list(times))]
    plan = min(plans, key=lambda plan: plan.expected_s)
    return Plan("exact", plan.stages, plan.expected_s)


def solve(times: RunTimes, max_s: float = _MAX_S) -> Solution:
    """Return the proved optimum.

    Raises:
        ConfigError: OR-tools is not installed, or nothing was proved in time.
    """
    with imports_of("bench", "the exact plan"):
        from ortools.sat.python import cp_model
    names = times.models
    listed = best_list(times)
    high = _count(makespan_s(times, *listed)) + len(names) + 1
    model = cp_model.CpModel()
    starts = {name: model.new_int_var(0, high, f"start of {name}") for name in names}
    ends = {name: model.new_int_var(0, high, f"end of {name}") for name in names}
    chosen, intervals, demands, areas = {}, [], [], []
    for name in names:
        plans = [plan for plan in useful(times, name) if _count(times.alone_s(name, plan)) <= high]
        for dp, tp in plans:
            is_chosen = chosen[name, dp, tp] = model.new_bool_var(f"{name} on {dp} x {tp}")
            model.add_hint(is_chosen, listed[0][name] == (dp, tp))
            least = _count(times.alone_s(name, (dp, tp)))
            length = model.new_int_var(least, high, "") if times.inputs[name] else least
            intervals.append(model.new_optional_interval_var(starts[name], length, ends[name], is_chosen, ""))
            demands.append(dp * tp)
            areas.append(least * dp * tp * is_chosen)
            for source in times.inputs[name]:
                last = _count(times.last_s(name, tp))
                model.add(ends[name] >= ends[source] + last).only_enforce_if(is_chosen)
        model.add_exactly_one(chosen[name, dp, tp] for dp, tp in plans)
        for source in times.inputs[name]:
            model.add(starts[name] >= starts[source])
    model.add_cumulative(intervals, demands, times.num_devices)
    makespan = model.new_int_var(0, high, "makespan")
    model.add_max_equality(makespan, list(ends.values()))
    model.add(sum(areas) <= times.num_devices * makespan)  # implied; it helps to prove
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max_s
    solver.parameters.random_seed = 0
    solver.parameters.num_workers = _NUM_WORKERS
    status = solver.solve(model)
    if status != cp_model.OPTIMAL:
        raise ConfigError(f"planner exact proved nothing within {max_s:.0f} s: {solver.status_name(status)}")
    choice = {name: (dp, tp) for (name, dp, tp), is_chosen in chosen.items() if solver.value(is_chosen)}
    places = {name: at for at, name in enumerate(names)}
    order = sorted(names, key=lambda name: (solver.value(starts[name]), places[name]))
    return Solution(choice, order, solver.best_objective_bound / _PARTS)


def _count(seconds: float) -> int:
    return round(seconds * _PARTS)
