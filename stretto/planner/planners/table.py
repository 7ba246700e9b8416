"""The planners by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.planner.plan import Plan
from stretto.planner.planners.heuristics import max_heuristic, min_heuristic
from stretto.planner.planners.moldable_list import moldable_list
from stretto.planner.planners.samullm_greedy import samullm_greedy
from stretto.planner.planners.stretto import stretto
from stretto.planner.run_times import RunTimes

PLANNERS: Mapping[str, Callable[[RunTimes], Plan]] = {
    "stretto": stretto,
    "moldable_list": moldable_list,
    "samullm_greedy": samullm_greedy,
    "min_heuristic": min_heuristic,
    "max_heuristic": max_heuristic,
}
