"""SamuLLM's greedy search: stages of the largest throughput for each device.

Source: SamuLLM Algorithm 1. Differs: the simulated time of a (dp, tp) is taken from the table for all of a
node's work and scaled to the share that is left; chains are fused into one node from the start.
"""

from __future__ import annotations

from stretto.planner.plan import Plan
from stretto.planner.planners.stages import Choice, StageState, plan_stages
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes


def samullm_greedy(times: RunTimes) -> Plan:
    """Return the plan of Algorithm 1; comments name its lines."""
    flops = {node: _flops(times.problem, node) for node in times.problem.names}

    def throughput(state: StageState, stage: Choice) -> float:
        if not stage:
            return 0.0
        duration_s = state.duration_s(stage)
        done = state.done(stage, duration_s)
        return sum(flops[node] * share for node, share in done.items()) / max(1e-9, duration_s)

    def choose(state: StageState) -> Choice:
        best = dict(state.kept)  # line 3; empty with preemption
        while True:
            used = _num_devices(best)
            candidates: list[dict[str, tuple[int, int]]] = []  # line 7
            for model in state.ready(best):  # line 5
                if model in state.kept:
                    continue
                for plan in times.plans(model):  # lines 6 and 8
                    stage = {**best, model: plan}  # lines 9 to 14
                    if used < _num_devices(stage) <= times.num_devices:
                        candidates.append(stage)
            now = throughput(state, best)
            gains = [  # lines 17 and 18
                (throughput(state, stage) - now) / (_num_devices(stage) - used) for stage in candidates
            ]
            if not candidates or max(gains) < 0:  # line 19
                return best
            best = candidates[gains.index(max(gains))]  # line 22

    return plan_stages("samullm_greedy", times, choose)  # lines 2, 24 and 25


def _num_devices(stage: Choice) -> int:
    return sum(dp * tp for dp, tp in stage.values())


def _flops(problem: Problem, node: str) -> float:
    """Return the operations of all calls of a node, by Equations 1 and 2 without padding."""
    model, drawn = problem.workload.models[node], problem.draws[0][node]
    lengths = (drawn.prompts + drawn.outputs).astype(float)
    attention = model.num_layers * model.num_heads * model.head_size
    return float((model.token_params * lengths).sum() + attention * (lengths**2).sum())
