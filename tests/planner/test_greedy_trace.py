"""The stages that SamuLLM's greedy search makes of an application like that of its Figure 1."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from stretto.planner.application import Application, ModelNode
from stretto.planner.plan import Plan
from stretto.planner.planners.heuristics import max_heuristic, min_heuristic
from stretto.planner.planners.samullm_greedy import samullm_greedy
from stretto.planner.run_times import RunTimes

WORK_S = {"1": 8.0, "2": 2.0, "3": 2.2, "4": 2.4, "5": 3.0, "6": 3.5}
"""Seconds of each model on one device."""
OPERATIONS_PER_S = {"1": 0.9, "2": 1.05, "3": 1.04, "4": 1.03, "5": 1.01, "6": 1.02}


class SixModels:
    """Six models on four devices, without time to load: model 1 scales evenly, the others do not."""

    num_devices = 4

    def __init__(self, *, preempts: bool) -> None:
        self.models = list(WORK_S)
        draws = {name: SimpleNamespace(prompts=np.array([1]), outputs=np.array([0])) for name in WORK_S}
        models = {
            name: SimpleNamespace(
                token_params=seconds * OPERATIONS_PER_S[name], num_layers=0, num_heads=0, head_size=0
            )
            for name, seconds in WORK_S.items()
        }
        self.problem = SimpleNamespace(
            names=list(WORK_S),
            nodes_of=lambda model: [model],
            costs={name: {1: None} for name in WORK_S},
            app=Application("six", [ModelNode(name, name, 9) for name in WORK_S]),
            draws=[draws],
            workload=SimpleNamespace(models=models),
            preempts=preempts,
        )

    def plans(self, _: str) -> list[tuple[int, int]]:
        return [(dp, 1) for dp in range(1, 5)]

    def parts(self, model: str) -> dict[str, float]:
        return {model: 1.0}

    def loading_s(self, *_: Any) -> float:
        return 0.0

    def run_s(self, node: str, tp: int, share: float) -> float:
        return WORK_S[node] * (share if node == "1" else 0.5 + 0.5 * share)


def stages(plan: Plan) -> list[dict[str, int]]:
    """Return the number of replicas of each model, stage by stage."""
    found = []
    for stage in plan.stages:
        names = [replica.model for replica in stage.replicas]
        found.append({name: names.count(name) for name in sorted(names)})
    return found


def test_greedy_gives_devices_to_the_model_that_makes_use_of_them() -> None:
    plan = samullm_greedy(cast(RunTimes, SixModels(preempts=True)))
    assert stages(plan) == [
        {"2": 1, "3": 1, "4": 1, "6": 1},
        {"3": 1, "4": 1, "5": 1, "6": 1},
        {"1": 1, "4": 1, "5": 1, "6": 1},
        {"1": 2, "5": 1, "6": 1},
        {"1": 3, "5": 1},
        {"1": 4},
    ]


def test_greedy_without_preemption() -> None:
    plan = samullm_greedy(cast(RunTimes, SixModels(preempts=False)))
    assert stages(plan) == [
        {"2": 1, "3": 1, "4": 1, "6": 1},
        {"3": 1, "4": 1, "5": 1, "6": 1},
        {"1": 1, "4": 1, "5": 1, "6": 1},
        {"1": 1, "5": 1, "6": 1},
        {"1": 1, "5": 1},
        {"1": 1},
    ]


def test_the_heuristics_of_the_same_figure() -> None:
    times = cast(RunTimes, SixModels(preempts=True))
    assert stages(max_heuristic(times)) == [{name: 4} for name in WORK_S]
    assert stages(min_heuristic(times)) == [
        {"1": 1, "2": 1, "3": 1, "4": 1},
        {"1": 1, "3": 1, "4": 1, "5": 1},
        {"1": 1, "4": 1, "5": 1, "6": 1},
        {"1": 2, "5": 1, "6": 1},
        {"1": 2, "6": 2},
        {"6": 4},
    ]
    kept = cast(RunTimes, SixModels(preempts=False))
    assert stages(min_heuristic(kept))[-3:] == [{"1": 1, "5": 1, "6": 1}, {"1": 1, "6": 1}, {"1": 1}]
