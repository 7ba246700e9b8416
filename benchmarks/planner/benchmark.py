"""`stretto bench planner`: plans for many models on eight GPUs, all carried out by one simulation.

The plan is made with some draws of the lengths of answers, and carried out with others. Nothing runs on a
GPU: step times are those fitted to measurements on A100-80G, or estimated for models without any.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from statistics import mean

from benchmarks.planner.applications import chain_summary, ensemble, mixed, routing
from benchmarks.planner.exact import exact_rows
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from stretto.costs.output_lengths import LengthsBySource
from stretto.costs.presets import load_output_lengths
from stretto.planner.application import Application, AppRequest
from stretto.planner.bound import lower_bound_s
from stretto.planner.compiled import compiled
from stretto.planner.execute import execute
from stretto.planner.execution import Execution
from stretto.planner.machine import machine_of
from stretto.planner.planners.first import first_plan
from stretto.planner.planners.servers import best_times
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes

MAKESPANS = "makespan"
APART = "applications together and one after the other"
FIRST = "first plan"
_SHOWN = ("stretto", "samullm_greedy", "min_heuristic", "max_heuristic")
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
        figure: figure of the paper that shows the replicas of such an application.
        parts: applications that it is made of, to be run one after the other for comparison.
    """

    name: str
    app: Application
    requests: list[AppRequest]
    paper: str = ""
    knows_lengths: bool = False
    preempts: bool = True
    figure: str = ""
    parts: tuple[tuple[Application, list[AppRequest]], ...] = ()


def cases(seed: int, quick: bool) -> Iterator[Case]:
    """Yield the applications of the comparison."""
    for num in (1000,) if quick else (1000, 4000, 7000, 10000):
        for cap in (256, 512):
            name = f"ensemble, {num} requests, cap {cap}"
            yield Case(name, *ensemble(num, cap, seed), "1.1-2.4 / 1.0-1.6")
    routed = routing(4096, seed, 0.25 if quick else 1.0)
    yield Case("routing, cap 4096", *routed, "1.4-1.8 / 1.0-1.1")
    name = "routing, cap 4096, lengths known"
    yield Case(name, *routed, "1.4-1.8 / 1.0-1.1", knows_lengths=True, figure="Figure 9")
    settings = [(100, 900, 2)]
    if not quick:
        settings += [(300, 900, 2), (500, 900, 2), (100, 100, 2), (100, 500, 2), (100, 900, 1), (100, 900, 6)]
    for num, cap, evaluations in settings:
        name = f"chain summary, {num} documents, cap {cap}, {evaluations} evaluations"
        yield Case(name, *chain_summary(num, cap, evaluations, seed), "1.0-1.3 / 1.0-1.4")
    for num in (50,) if quick else (100, 400, 500):
        chain, models = chain_summary(num, 900, 4, seed), ensemble(500 if quick else 5000, 256, seed)
        both = mixed(chain, models)
        name = f"mixed, {num} documents and {len(models[1])} requests, cap 256"
        figure = "Figure 13" if num == 400 else ""
        yield Case(name, *both, "1.2-1.4 / 1.2-1.4", figure=figure, parts=(chain, models))
    num = 50 if quick else 500
    both = mixed(chain_summary(num, 900, 4, seed), ensemble(500 if quick else 5000, 512, seed))
    name = f"mixed, {num} documents and {500 if quick else 5000} requests, cap 512"
    yield Case(name, *both)
    yield Case(f"{name}, lengths known", *both, knows_lengths=True)
    yield Case(f"{name}, no preemption", *both, preempts=False, figure="Figure 15")


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Plan each application with each planner, and random ones by the exact one too."""
    report = measure(list(cases(options.seed, options.quick)), options)
    rows, goals = exact_rows(10 if options.quick else 100, options)
    return replace(report, rows=(*report.rows, *rows), goals=(*report.goals, *goals))


def _estimated(problem: Problem) -> str:
    """Return which models have step times or lengths that were not measured; empty if there are none."""
    names = {
        problem.workload.models[node].name
        for node in problem.names
        if node in problem.workload.estimated
        or any(cost.is_estimated for cost in problem.costs[problem.app.node(node).model].values())
    }
    return f"estimated: {', '.join(sorted(names))}" if names else ""


def measure(chosen: list[Case], options: BenchmarkOptions) -> Report:
    """Plan these applications with each planner, and compare the makespans."""
    rows: list[Row] = []
    goals: list[Goal] = []
    worst, slowest_s, first_s, to_bound = 0.0, 0.0, 0.0, inf
    lengths = load_output_lengths()
    for case in chosen:
        options.say(case.name)
        begin_s = time.process_time()
        problem = _problem(case.app, case.requests, lengths, options, case.preempts)
        first = first_plan(problem)
        first_s = max(first_s, first_cpu_s := time.process_time() - begin_s)
        num_unseen = 1 if case.knows_lengths else _NUM_UNSEEN
        seeds = range(options.seed * 1000 + _NUM_DRAWS, options.seed * 1000 + _NUM_DRAWS + num_unseen)
        unseen = [problem.workload.draw(seed) for seed in seeds]
        begin_s = time.process_time()
        times = best_times(problem.knowing(*unseen) if case.knows_lengths else problem)
        table_s = time.process_time() - begin_s
        bound_s = mean(lower_bound_s(problem, drawn) for drawn in unseen)
        num_devices = problem.machine.num_devices
        found: dict[str, dict[str, Value]] = {}
        seconds: dict[str, float] = {}
        for name in (*PLANNERS, FIRST):
            options.say(f"{case.name}: {name}")
            begin_s = time.process_time()
            plan = first if name == FIRST else PLANNERS[name](times)
            search_s = first_cpu_s if name == FIRST else table_s + time.process_time() - begin_s
            served = problem if name == FIRST else times.problem
            done = [execute(served, plan, drawn) for drawn in unseen]
            seconds[name] = mean(one.makespan_s for one in done)
            found[name] = {
                "makespan_s": seconds[name],
                "to_bound": seconds[name] / bound_s,
                "idle_gpu_s": mean(one.idle_share(num_devices) * one.makespan_s for one in done)
                * num_devices,
                "search_cpu_s": search_s,
            }
            if case.figure and name in _SHOWN:
                rows += schedule_rows(f"{case.figure}: {case.name}", name, done[0])
            if name == "stretto":
                slowest_s = max(slowest_s, search_s)
        for name, values in found.items():
            against: dict[str, Value] = {
                "of_max_heuristic": seconds["max_heuristic"] / seconds[name],
                "of_min_heuristic": seconds["min_heuristic"] / seconds[name],
            }
            if name == "stretto" and case.paper:
                against["paper"] = case.paper
            rows.append(
                Row(
                    MAKESPANS, f"{case.name}: {name}", {**values, **against}, "simulated", _estimated(problem)
                )
            )
        if case.parts:
            parts_s = sum(_alone_s(*part, lengths, options) for part in case.parts)
            apart: dict[str, Value] = {
                "one_after_the_other_s": parts_s,
                "together_s": seconds["stretto"],
                "gain": parts_s / seconds["stretto"],
                "paper": "1.0-1.2",
            }
            rows.append(Row(APART, case.name, apart, "simulated"))
        worst = max(worst, seconds["stretto"] / min(seconds.values()))
        to_bound = min(to_bound, min(seconds.values()) / bound_s)
    goals += (
        Goal("makespan of stretto / best of all, largest", worst, 1.01, "lower"),
        Goal("makespan of any plan / lower bound, smallest", to_bound, 1.0, "higher"),
        Goal("search of stretto, CPU seconds, largest", slowest_s, 3.0, "lower"),
        Goal("first plan, CPU seconds, largest", first_s, 0.3, "lower"),
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
            "The bound is one of the draws carried out: least work on all devices, with the loads that no "
            "plan can avoid, and the longest path.",
            "first plan: lengths are drawn once, and 1,024 requests of each node simulated in plain "
            "Python; its CPU seconds begin with the reading of the requests into arrays.",
            "idle_gpu_s: seconds in which GPUs do not compute, loading included.",
            "paper: speedups of the paper over Max / Min.",
            "Prompts are synthetic, of the published sizes.",
            f"The simulation was {'run as it is' if compiled() is None else 'compiled by numba'}, which CPU "
            "seconds depend on.",
        ),
    )


def _problem(
    app: Application,
    requests: list[AppRequest],
    lengths: LengthsBySource,
    options: BenchmarkOptions,
    preempts: bool = True,
) -> Problem:
    machine = machine_of(_MACHINE)
    return Problem(
        app, requests, machine, lengths, num_draws=_NUM_DRAWS, seed=options.seed, preempts=preempts
    )


def _alone_s(
    app: Application, requests: list[AppRequest], lengths: LengthsBySource, options: BenchmarkOptions
) -> float:
    """Return the mean makespan of stretto's plan for one application alone."""
    problem = _problem(app, requests, lengths, options)
    plan = PLANNERS["stretto"](RunTimes(problem))
    first = options.seed * 1000 + _NUM_DRAWS
    unseen = (problem.workload.draw(seed) for seed in range(first, first + _NUM_UNSEEN))
    return mean(execute(problem, plan, drawn).makespan_s for drawn in unseen)


def schedule_rows(table: str, planner: str, done: Execution) -> list[Row]:
    """Return a row for each set of equal replicas that begin and end at about the same time, by start."""
    groups: dict[tuple[str, int, int, int], int] = {}
    for span in sorted(done.spans, key=lambda span: (span.start_s, span.replica.devices)):
        key = span.replica.model, span.replica.tp, round(span.start_s), round(span.end_s)
        groups[key] = groups.get(key, 0) + 1
    return [
        Row(
            table,
            f"{planner}: {model}",
            {"from_s": start_s, "to_s": end_s, "replicas": count, "gpus_each": tp},
            "simulated",
        )
        for (model, tp, start_s, end_s), count in groups.items()
    ]
