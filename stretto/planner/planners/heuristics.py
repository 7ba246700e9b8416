"""The two heuristics that SamuLLM is compared with (section 5)."""

from __future__ import annotations

from itertools import combinations

from stretto.planner.plan import Plan
from stretto.planner.planners.stages import Choice, StageState, plan_stages
from stretto.planner.run_times import RunTimes


def max_heuristic(times: RunTimes) -> Plan:
    """Give all devices to one model after the other, each with its fastest (dp, tp)."""

    def choose(state: StageState) -> Choice:
        if kept := state.kept:
            return kept
        model = state.ready({})[0]
        return {model: _fastest(state, model, times.num_devices)}

    return plan_stages("max_heuristic", times, choose)


def min_heuristic(times: RunTimes) -> Plan:
    """Run as many models at once as there are devices for; spread the devices as evenly as possible.

    Of all even partitions, take the one whose slowest model ends first. Each time that a model is finished,
    the devices are partitioned anew.
    """

    def choose(state: StageState) -> Choice:
        kept = state.kept
        num_devices = num_free = times.num_devices - sum(dp * tp for dp, tp in kept.values())
        models: dict[str, int] = {}
        for model in state.models_left:
            least = min(state.times.problem.costs[model])
            if model not in kept and least <= num_free and model in state.ready({**kept, **models}):
                models[model] = least
                num_free -= least
        if not models:
            return kept
        choices = [{**kept, **chosen} for chosen in _partitions(state, models, num_devices)]
        return min(choices, key=lambda stage: _slowest(state, stage))

    return plan_stages("min_heuristic", times, choose)


def _partitions(state: StageState, models: dict[str, int], num_devices: int) -> list[Choice]:
    """Return the choices in which no model has two devices more than another, unless it needs them."""
    level = max(1, num_devices // len(models))
    while sum(max(least, level) for least in models.values()) > num_devices:
        level -= 1
    shares = {model: max(least, level) for model, least in models.items()}
    num_left = num_devices - sum(shares.values())
    able = [model for model in models if shares[model] == level]
    return [
        {model: _fastest(state, model, share + (model in favoured)) for model, share in shares.items()}
        for favoured in combinations(able, min(num_left, len(able)))
    ]


def _fastest(state: StageState, model: str, num_devices: int) -> tuple[int, int]:
    """Return the (dp, tp) on at most so many devices with which a model is finished first."""
    plans = [plan for plan in state.times.plans(model) if plan[0] * plan[1] <= num_devices]
    return min(
        plans,
        key=lambda plan: state.load_s(model, plan) + state.left_s(model, plan),
    )


def _slowest(state: StageState, stage: Choice) -> float:
    return max(end_s for _, end_s in state.spans_s(stage).values())
