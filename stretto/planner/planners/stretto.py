"""Stretto's own planner: replicas are jobs of their own, which start and end by themselves.

A model's calls are shared by replicas that may differ in tensor parallelism, start and share, so that all
devices end at about the same time. One search begins with the best list of moldable jobs, another one with
devices filled one after the other. They improve the mean makespan over the draws by random changes: another
number or size of replicas, another order, another share. The plans found, and those of the other planners
that the table does not rule out, are then simulated over several draws of the lengths of answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from random import Random
from typing import NamedTuple

from stretto.planner.execute import execute
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.planners.heuristics import max_heuristic, min_heuristic
from stretto.planner.planners.moldable_list import best_list, narrow, plan_of_list
from stretto.planner.planners.samullm_greedy import samullm_greedy
from stretto.planner.planners.wrapped import LEAST_SHARE, wrapped
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes
from stretto.planner.starts import Starts

_NUM_TRIES = 3000
_NUM_NARROW_TRIES = 200
_MIN_DRAWS = 2
_MAX_CALLS = 50_000
_MARGIN = 10.0
_EQUAL = 1.005
_TABLE_MARGIN = 3000.0
_MANY_CALLS = 25_000


class _Job(NamedTuple):
    """One replica: its model, devices, share of the model's calls; and its seconds with each draw of lengths,
    with those to load.
    """

    model: str
    tp: int
    share: float
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Jobs with their first devices and the times at which they end; times are means over the draws."""

    makespan_s: float
    score: float
    at: tuple[int, ...]
    ends_s: tuple[float, ...]


def stretto(times: RunTimes) -> Plan:
    """Return the plan with the least mean makespan over the draws, found or taken from another planner."""
    *_, found = improving(times)
    return found


def improving(times: RunTimes) -> Iterator[Plan]:
    """Yield the best plan by the table so far, again and again, and at last what `stretto` returns."""
    candidates: list[Plan] = []
    for plan in found_by_table(times):
        candidates.append(plan)
        yield replace(min(candidates, key=lambda one: one.expected_s), planner="stretto")
    candidates += [make(times) for make in (samullm_greedy, min_heuristic, max_heuristic)]
    yield Plan("stretto", best_of(times.problem, candidates).stages)


def found_by_table(times: RunTimes) -> Iterator[Plan]:
    """Yield the best list of moldable jobs, the best one of small replicas, and the plans that searches find
    from the first of them on.

    For chains, the table has the longest chain in each share, as if it came with as many other requests as
    the share has. Many small replicas may therefore end earlier than by the table.
    """
    choice, order = best_list(times)
    yield plan_of_list(times, choice, order)
    yield plan_of_list(times, *best_list(times, _NUM_NARROW_TRIES, narrow))
    jobs = [(name, choice[name][1], 1 / choice[name][0]) for name in order for _ in range(choice[name][0])]
    starts = [jobs, filled] if (filled := wrapped(times)) else [jobs]
    found = [search(times, start) for start in starts]
    if _num_calls(times.problem) > _MANY_CALLS:
        found = [min(found, key=lambda plan: plan.expected_s)]
    yield from found


def best_of(problem: Problem, plans: Sequence[Plan]) -> Plan:
    """Return the plan with the least mean makespan over the draws; of many calls, over the first draws only.

    A plan that takes much longer than another, by the table or with the draws so far, is not simulated with
    the rest. What is much shrinks with the root of the number of calls, as the differences between draws do:
    10 % for 10,000. Where all that are left take the same but for half a percent, the best so far is taken.
    The table may err by 2 % for very many calls, and by 32 % for 10,000. For plans of several stages it is
    too short, and for others too if there are no chains, because inputs are there at once in it. So one that
    takes much longer by it than another in a simulation is left out.
    """
    num_calls = _num_calls(problem)
    margin = 1 + _MARGIN / num_calls**0.5
    lists_s = [plan.expected_s for plan in plans if len(plan.stages) == 1]
    most_s = (1.02 + _TABLE_MARGIN / num_calls) * min(lists_s, default=inf)
    left = list({plan.stages: plan for plan in plans if plan.expected_s <= most_s}.values())
    left.sort(key=lambda plan: (len(plan.stages) > 1, plan.expected_s))
    has_chains = any(node.chain for node in problem.app.nodes)
    totals_s = [0.0] * len(left)
    for number, drawn in enumerate(problem.draws[: max(_MIN_DRAWS, _MAX_CALLS // num_calls)]):
        if max(totals_s) <= _EQUAL * min(totals_s) and (number or len(left) == 1):
            break
        for at, plan in enumerate(left):
            is_least = len(plan.stages) > 1 or not has_chains
            if not number and at and is_least and plan.expected_s > margin * min(totals_s[:at]):
                totals_s[at] = inf
            else:
                totals_s[at] += execute(problem, plan, drawn).makespan_s
        kept = [at for at, total_s in enumerate(totals_s) if total_s <= margin * min(totals_s)]
        left, totals_s = [left[at] for at in kept], [totals_s[at] for at in kept]
    return left[totals_s.index(min(totals_s))]


def _num_calls(problem: Problem) -> int:
    return sum(len(calls.requests) for calls in problem.workload.calls.values())


def search(times: RunTimes, start: Sequence[tuple[str, int, float]], num_tries: int = _NUM_TRIES) -> Plan:
    """Return the plan with the least makespan by the table, found by random changes.

    The makespan is the mean over the draws of the table.

    Args:
        start: model, tensor parallelism and share of each replica to begin with, in the order of their
            starts.
    """
    random = Random(0)
    jobs = [_job(times, *replica) for replica in start]
    now, placed = jobs, _place(times, jobs)
    best, best_placed = now, placed
    for number in range(num_tries):
        if random.random() < 0.3:
            changed = _balanced(times, now, placed, random)
        else:
            changed = _changed(times, now, random)
        if changed is None:
            continue
        changed_placed = _place(times, changed)
        heat = 0.01 * best_placed.score * (1 - number / num_tries)
        loss = changed_placed.score - placed.score
        if loss <= 0 or random.random() < exp(-loss / max(1e-9, heat)):
            now, placed = changed, changed_placed
            if placed.score < best_placed.score:
                best, best_placed = now, placed
    replicas = tuple(
        PlannedReplica(job.model, tuple(range(at, at + job.tp)), job.share)
        for job, at in zip(best, best_placed.at, strict=True)
    )
    return Plan("stretto", (Stage(replicas),), best_placed.makespan_s)


def _job(times: RunTimes, model: str, tp: int, share: float) -> _Job:
    loading_s = times.loading_s(model, tp)
    return _Job(model, tp, share, [loading_s + run_s for run_s in times.each_run_s(model, tp, share)])


def _place(times: RunTimes, jobs: Sequence[_Job]) -> _Placed:
    """Place jobs, as `_placed` does; models that wait for each other end no earlier than that allows."""
    placed, spans = _placed(times, jobs, {})
    if floors := times.circles.floors_s(spans):
        placed, _ = _placed(times, jobs, floors)
    return placed


def _placed(
    times: RunTimes, jobs: Sequence[_Job], floors: Mapping[str, float]
) -> tuple[_Placed, dict[str, tuple[float, float]]]:
    """Give each job, in order, the devices that are free first in the mean of the draws. Returns the begin
    and end of each model too.

    The score is the mean makespan, and a little of the devices' mean end, so that progress shows.
    """
    num = times.num_draws
    starts = Starts(times.problem) if times.problem.reads_disk else None
    free_s = [[0.0] * times.num_devices for _ in range(num)]
    mean_s = [0.0] * times.num_devices
    ended_s: dict[str, list[float]] = {}
    places, ends = [], []
    holders: dict[int, str] = {}
    spans: dict[str, tuple[float, float]] = {}
    for model, tp, _, seconds in jobs:
        if starts:
            at, start_s = _first_group(mean_s, tp)
            wait_s = starts.ready_s(model, tp, start_s) - start_s - times.loading_s(model, tp)
            seconds = [took_s + wait_s for took_s in seconds]
        if tp == 1:
            at = mean_s.index(min(mean_s))
            ends_s = [free[at] + took_s for free, took_s in zip(free_s, seconds, strict=True)]
        else:
            at, _ = _first_group(mean_s, tp)
            ends_s = [max(free[at : at + tp]) + took_s for free, took_s in zip(free_s, seconds, strict=True)]
        if times.circles.of[model]:
            reload_s = times.circles.reload_s(model, (holders.get(device) for device in range(at, at + tp)))
            ends_s = [end_s + reload_s for end_s in ends_s]
            holders.update(dict.fromkeys(range(at, at + tp), model))
            floor_s = floors.get(model, 0.0)
            begin_s = max(mean_s[at : at + tp]) + times.loading_s(model, tp)
            first_s, last_s = spans.get(model, (begin_s, 0.0))
            ends_s = [max(end_s, floor_s) for end_s in ends_s]
            spans[model] = min(begin_s, first_s), max(sum(ends_s) / num, last_s)
        for source in times.inputs[model]:
            last_s = times.last_s(model, tp)
            ends_s = [
                max(end_s, other_s + last_s) for end_s, other_s in zip(ends_s, ended_s[source], strict=True)
            ]
        before_s = ended_s.get(model)
        ended_s[model] = list(map(max, ends_s, before_s)) if before_s else ends_s
        end_s = sum(ends_s) / num
        mean_s[at : at + tp] = [end_s] * tp
        for free, one_s in zip(free_s, ends_s, strict=True):
            free[at : at + tp] = [one_s] * tp
        places.append(at)
        ends.append(end_s)
    makespan_s = sum(map(max, free_s)) / num
    score = makespan_s + 0.1 * sum(mean_s) / len(mean_s)
    return _Placed(makespan_s, score, tuple(places), tuple(ends)), spans


def _first_group(free_s: Sequence[float], tp: int) -> tuple[int, float]:
    """Return the first device of the aligned group that is free first, and when it is."""
    start_s, at = min((max(free_s[at : at + tp]), at) for at in range(0, len(free_s) - tp + 1, tp))
    return at, start_s


def _balanced(times: RunTimes, jobs: list[_Job], placed: _Placed, random: Random) -> list[_Job] | None:
    """Move calls of a model from its replica that ends last to the one that ends first."""
    late = [at for at, end_s in enumerate(placed.ends_s) if end_s > 0.98 * max(placed.ends_s)]
    model = jobs[random.choice(late)].model
    mine = [at for at, job in enumerate(jobs) if job.model == model]
    if len(mine) < 2:
        return None
    last = max(mine, key=placed.ends_s.__getitem__)
    first = min(mine, key=placed.ends_s.__getitem__)
    moved = jobs[last].share * random.choice((0.02, 0.05, 0.1, 0.25))
    if last == first or jobs[last].share - moved < LEAST_SHARE:
        return None
    changed = list(jobs)
    changed[last] = _job(times, model, jobs[last].tp, jobs[last].share - moved)
    changed[first] = _job(times, model, jobs[first].tp, jobs[first].share + moved)
    return changed


def _changed(times: RunTimes, jobs: list[_Job], random: Random) -> list[_Job] | None:
    """Return the jobs with one random change: a replica split, removed, resized or moved in the order."""
    changed = list(jobs)
    at = random.randrange(len(jobs))
    job = jobs[at]
    mine = [other for other, one in enumerate(jobs) if one.model == job.model and other != at]
    kind = random.random()
    if kind < 0.25:
        if job.share < 2 * LEAST_SHARE:
            return None
        part = job.share * random.choice((0.25, 0.5, 0.75))
        changed[at] = _job(times, job.model, job.tp, job.share - part)
        changed.insert(random.randrange(len(changed) + 1), _job(times, job.model, job.tp, part))
    elif kind < 0.45:
        if not mine:
            return None
        left = sum(jobs[other].share for other in mine)
        for other in mine:
            changed[other] = _job(times, job.model, jobs[other].tp, jobs[other].share / left)
        del changed[at]
    elif kind < 0.6:
        changed[at] = _job(times, job.model, random.choice(list(times.problem.costs[job.model])), job.share)
    else:
        changed.insert(random.randrange(len(jobs)), changed.pop(at))
    return changed if _respects_inputs(times, changed) else None


def _respects_inputs(times: RunTimes, jobs: Sequence[_Job]) -> bool:
    """Return whether all replicas of a model's inputs come before its own."""
    if not any(times.inputs.values()):
        return True
    last = {job.model: at for at, job in enumerate(jobs)}
    return all(last[source] < at for at, job in enumerate(jobs) for source in times.inputs[job.model])
