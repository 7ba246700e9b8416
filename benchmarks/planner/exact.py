"""Random applications of a few models, for which the best plan with one (dp, tp) for each is proved."""

from __future__ import annotations

from importlib.util import find_spec
from random import Random

from benchmarks.baselines.exact_plan import solve
from benchmarks.planner.applications import ENSEMBLE, ROUTED
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row
from stretto.costs.output_lengths import LengthsBySource
from stretto.costs.presets import load_output_lengths
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.machine import machine_of
from stretto.planner.planners.moldable_list import best_list, plan_of_list
from stretto.planner.planners.stretto import found_by_table
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes

EXACT = "random applications: time by the table over the proved optimum"
_MACHINES = ("8xA100-80G", "4xA100-80G")
_MODELS = [*ENSEMBLE, *(model for model in ROUTED if not model.startswith("Mixtral"))]


def exact_rows(num: int, options: BenchmarkOptions) -> tuple[list[Row], list[Goal]]:
    """Compare the plans of stretto and of the list with proved optima; nothing without OR-tools."""
    if find_spec("ortools") is None:
        options.say("no exact plans: OR-tools is not installed")
        return [], []
    lengths = load_output_lengths()
    ratios: list[tuple[float, float]] = []
    for seed in range(num):
        options.say(f"exact plan {seed + 1} of {num}")
        times = random_times(seed, lengths)
        try:
            least_s = solve(times).least_s
        except ConfigError:  # nothing was proved in time
            continue
        listed = plan_of_list(times, *best_list(times)).expected_s
        ours = min(plan.expected_s for plan in found_by_table(times))
        ratios.append((ours / least_s, listed / least_s))
    rows = []
    for name, column in (("stretto", 0), ("moldable_list", 1)):
        values = [ratio[column] for ratio in ratios]
        mean = sum(values) / max(1, len(values))
        found = {"proved": len(values), "least": min(values), "mean": mean, "largest": max(values)}
        rows.append(Row(EXACT, name, found, "computed"))
    largest = max(ratio[0] for ratio in ratios)
    return rows, [Goal("stretto / proved optimum, random applications, largest", largest, 1.01, "lower")]


def random_times(seed: int, lengths: LengthsBySource) -> RunTimes:
    """Return the table of an application of two to six models, some of which take others' answers."""
    random = Random(seed)
    models = random.sample(_MODELS, random.randint(2, 6))
    nodes: list[ModelNode] = []
    for model in models:
        inputs = (random.choice(nodes).name,) if nodes and random.random() < 0.25 else ()
        cap, calls = random.choice([64, 256, 512]), random.choice([1, 1, 2])
        nodes.append(ModelNode(model, model, cap, 0, inputs, calls))
    requests = [
        AppRequest(
            str(at), random.randint(5, 200), (), tuple(random.sample(models, random.randint(1, len(models))))
        )
        for at in range(random.choice([20, 200, 500]))
    ]
    machine = machine_of(random.choice(_MACHINES))
    return RunTimes(Problem(Application("random", nodes), requests, machine, lengths, num_draws=1))
