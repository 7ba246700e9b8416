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
        node = state.ready({})[0]
        return {node: _fastest(state, node, times.num_devices)}

    return plan_stages("max_heuristic", times, choose)


def min_heuristic(times: RunTimes) -> Plan:
    """Run as many models at once as there are devices for; spread the devices as evenly as possible.

    Of all even partitions, take the one whose slowest model ends first. Each time that a model is finished,
    the devices are partitioned anew.
    """

    def choose(state: StageState) -> Choice:
        kept = state.kept
        num_devices = num_free = times.num_devices - sum(dp * tp for dp, tp in kept.values())
        nodes: dict[str, int] = {}
        for node in state.left:
            least = min(state.times.problem.costs[node])
            if node not in kept and least <= num_free and node in state.ready({**kept, **nodes}):
                nodes[node] = least
                num_free -= least
        if not nodes:
            return kept
        choices = [{**kept, **chosen} for chosen in _partitions(state, nodes, num_devices)]
        return min(choices, key=lambda stage: _slowest(state, stage))

    return plan_stages("min_heuristic", times, choose)


def _partitions(state: StageState, nodes: dict[str, int], num_devices: int) -> list[Choice]:
    """Return the choices in which no node has two devices more than another, unless it needs them."""
    level = max(1, num_devices // len(nodes))
    while sum(max(least, level) for least in nodes.values()) > num_devices:
        level -= 1
    shares = {node: max(least, level) for node, least in nodes.items()}
    num_left = num_devices - sum(shares.values())
    able = [node for node in nodes if shares[node] == level]
    return [
        {node: _fastest(state, node, share + (node in favoured)) for node, share in shares.items()}
        for favoured in combinations(able, min(num_left, len(able)))
    ]


def _fastest(state: StageState, node: str, num_devices: int) -> tuple[int, int]:
    """Return the (dp, tp) on at most so many devices with which a node is finished first."""
    plans = [plan for plan in state.times.plans(node) if plan[0] * plan[1] <= num_devices]
    return min(
        plans,
        key=lambda plan: state.load_s(node, plan) + state.left[node] * state.whole_s(node, plan),
    )


def _slowest(state: StageState, stage: Choice) -> float:
    return max(state.ends_s(stage).values())
