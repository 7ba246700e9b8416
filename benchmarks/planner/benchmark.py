"""`stretto bench planner`: plans for many models on eight GPUs, all carried out by one simulation.

The plan is made with some draws of the lengths of answers, and carried out with others. Nothing runs on a
GPU: step times are those fitted to measurements on A100-80G, or estimated for models without any.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from benchmarks.planner.applications import chain_summary, ensemble, mixed, routing
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from stretto.costs.presets import load_output_lengths
from stretto.planner.application import Application, Request
from stretto.planner.bound import lower_bound_s
from stretto.planner.execute import execute
from stretto.planner.machine import machine_of
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes

MAKESPANS = "makespan"
_MACHINE = "8xA100-80G"
_NUM_DRAWS = 5
_NUM_UNSEEN = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One application with its requests.

    Attributes:
        paper: speedups over Max and Min that the paper has for such applications.
        knows_lengths: whether planners know the lengths of answers.
        preempts: whether stages may end replicas that still have calls.
        bound_goal: most makespan of stretto as a multiple of the bound, where there is such a goal.
    """

    name: str
    app: Application
    requests: list[Request]
    paper: str = ""
    knows_lengths: bool = False
    preempts: bool = True
    bound_goal: float | None = None


def cases(seed: int, quick: bool) -> Iterator[Case]:
    """Yield the applications of the comparison."""
    for num in (1000,) if quick else (1000, 10000):
        for cap in (256, 512):
            name = f"ensemble, {num} requests, cap {cap}"
            goal = 1.03 if num == 10000 else None
            yield Case(name, *ensemble(num, cap, seed), "1.1-2.4 / 1.0-1.6", bound_goal=goal)
    routed = routing(4096, seed, 0.25 if quick else 1.0)
    yield Case("routing, cap 4096", *routed, "1.4-1.8 / 1.0-1.1")
    yield Case("routing, cap 4096, lengths known", *routed, "1.4-1.8 / 1.0-1.1", knows_lengths=True)
    for num in (100,) if quick else (100, 300):
        app, requests = chain_summary(num, 900, 2, seed)
        yield Case(f"chain summary, {num} documents, cap 900", app, requests, "1.0-1.3 / 1.0-1.4")
    num, cap = (500, 256) if quick else (5000, 512)
    both = mixed(chain_summary(num // 10, 900, 4, seed), ensemble(num, cap, seed))
    name = f"mixed, {num // 10} documents and {num} requests"
    yield Case(name, *both, "1.2-1.4 / 1.2-1.4")
    yield Case(f"{name}, no preemption", *both, preempts=False)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Plan each application with each planner."""
    return measure(list(cases(options.seed, options.quick)), options)


def measure(chosen: list[Case], options: BenchmarkOptions) -> Report:
    """Plan these applications with each planner, and compare the makespans."""
    rows: list[Row] = []
    goals: list[Goal] = []
    worst, slowest_s = 0.0, 0.0
    lengths = load_output_lengths()
    for case in chosen:
        options.say(case.name)
        problem = Problem(
            case.app,
            case.requests,
            machine_of(_MACHINE),
            lengths,
            num_draws=_NUM_DRAWS,
            seed=options.seed,
            preempts=case.preempts,
        )
        num_unseen = 1 if case.knows_lengths else _NUM_UNSEEN
        first = options.seed * 1000 + _NUM_DRAWS
        unseen = [problem.workload.draw(seed) for seed in range(first, first + num_unseen)]
        begin_s = time.process_time()
        times = RunTimes(problem.knowing(*unseen) if case.knows_lengths else problem)
        table_s = time.process_time() - begin_s
        bound_s = lower_bound_s(times if case.knows_lengths else RunTimes(problem.knowing(*unseen)))
        num_devices = problem.machine.num_devices
        found: dict[str, dict[str, Value]] = {}
        seconds: dict[str, float] = {}
        for name, make in PLANNERS.items():
            options.say(f"{case.name}: {name}")
            begin_s = time.process_time()
            plan = make(times)
            search_s = table_s + time.process_time() - begin_s
            done = [execute(problem, plan, drawn) for drawn in unseen]
            seconds[name] = mean(one.makespan_s for one in done)
            found[name] = {
                "makespan_s": seconds[name],
                "to_bound": seconds[name] / bound_s,
                "idle_gpu_s": mean(one.idle_share(num_devices) * one.makespan_s for one in done)
                * num_devices,
                "search_cpu_s": search_s,
            }
            if name == "stretto":
                slowest_s = max(slowest_s, search_s)
        for name, values in found.items():
            against: dict[str, Value] = {
                "of_max_heuristic": seconds["max_heuristic"] / seconds[name],
                "of_min_heuristic": seconds["min_heuristic"] / seconds[name],
            }
            if name == "stretto" and case.paper:
                against["paper"] = case.paper
            rows.append(Row(MAKESPANS, f"{case.name}: {name}", {**values, **against}, "simulated"))
        worst = max(worst, seconds["stretto"] / min(seconds.values()))
        if case.bound_goal:
            to_bound = seconds["stretto"] / bound_s
            goals.append(Goal(f"stretto / lower bound, {case.name}", to_bound, case.bound_goal, "lower"))
    goals += (
        Goal("makespan of stretto / best of all, largest", worst, 1.01, "lower"),
        Goal("search of stretto, CPU seconds, largest", slowest_s, 3.0, "lower"),
    )
    return Report(
        "planner",
        options.seed,
        {"machine": _MACHINE, "draws": _NUM_DRAWS, "cases": [case.name for case in chosen]},
        tuple(rows),
        tuple(goals),
        (
            "Plans are made with five draws of the lengths of answers, and carried out with three others; "
            "known lengths are one draw. Times are means.",
            "The bound is that of the table of run times with the draws carried out: area on all devices, "
            "and the longest path.",
            "idle_gpu_s: seconds in which GPUs do not compute, loading included.",
            "paper: speedups of the paper over Max / Min.",
            "Prompts are synthetic, of the published sizes.",
        ),
    )
