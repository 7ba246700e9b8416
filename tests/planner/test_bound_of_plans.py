"""The lower bound of random applications is below every plan that is carried out with the same draw."""

from __future__ import annotations

import random

import pytest

from stretto.costs.presets import load_output_lengths
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.bound import lower_bound_s
from stretto.planner.execute import execute
from stretto.planner.machine import PlanMachine
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes

MODELS = ("vicuna-13b-v1.5", "mpt-7b-chat", "chatglm3-6b", "Qwen3-8B")


def problem(numbers: random.Random) -> Problem:
    """Return a random application of up to five nodes, of up to three models, on up to eight GPUs."""
    models = numbers.sample(MODELS, numbers.randint(1, 3))
    nodes: list[ModelNode] = []
    for at in range(numbers.randint(1, 5)):
        kind = numbers.choice(["", "", "map", "chain"])
        nodes.append(
            ModelNode(
                f"n{at}",
                numbers.choice(models),
                numbers.choice([1, 2, 20, 60, 200]),
                inputs=tuple(node.name for node in nodes if numbers.random() < 0.5),
                map=kind == "map",
                chain=kind == "chain",
                calls=1 if kind else numbers.choice([1, 1, 3]),
                prompt_tokens=numbers.choice([0, 100]),
            )
        )
    requests = [
        AppRequest(
            str(at),
            numbers.randint(1, 400),
            tuple(numbers.randint(1, 300) for _ in range(numbers.randint(1, 4))),
        )
        for at in range(numbers.choice([1, 2, 5, 20]))
    ]
    machine = PlanMachine("some", numbers.choice([1, 2, 3, 8]), "A100-80G")
    return Problem(Application("app", nodes), requests, machine, load_output_lengths(), num_draws=2)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(10, 50, 10))])
def test_no_plan_of_a_random_application_is_shorter_than_its_bound(first: int) -> None:
    for seed in range(first, first + 10):
        some = problem(random.Random(seed))
        times = RunTimes(some)
        plans = [PLANNERS[name](times) for name in ("max_heuristic", "min_heuristic", "samullm_greedy")]
        drawn = some.draw(seed % 2)
        took_s = min(execute(some, plan, drawn).makespan_s for plan in plans)
        assert 0 < lower_bound_s(some, drawn) <= took_s, seed
