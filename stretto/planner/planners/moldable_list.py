"""List scheduling of moldable jobs: each model has one (dp, tp) and runs once, the longest first.

The choice of (dp, tp) and the order are improved by simulated annealing: several searches, of which some
begin with the fewest devices for each model, and others with the most that are of use to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from random import Random

from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.planners.stages import Choice
from stretto.planner.run_times import RunTimes

_NUM_SEARCHES = 4
_NUM_TRIES = 4000


def moldable_list(times: RunTimes) -> Plan:
    """Return the plan of the best list found."""
    return plan_of_list(times, *best_list(times))


def useful(times: RunTimes, name: str) -> list[tuple[int, int]]:
    """Return the (dp, tp) of a model that no other beats with as few devices."""
    plans = sorted(times.plans(name), key=lambda plan: (plan[0] * plan[1], times.alone_s(name, plan)))
    useful: list[tuple[int, int]] = []
    for plan in plans:
        if not useful or times.alone_s(name, plan) < times.alone_s(name, useful[-1]):
            useful.append(plan)
    return useful


def best_list(
    times: RunTimes,
    num_tries: int = _NUM_TRIES,
    options_of: Callable[[RunTimes, str], list[tuple[int, int]]] = useful,
) -> tuple[Choice, list[str]]:
    """Search the (dp, tp) of each model, and the order in which models are placed.

    Args:
        num_tries: number of random changes in each search.
        options_of: returns the (dp, tp) that a model may have, those with the fewest devices first.
    """
    random = Random(0)
    options = {name: options_of(times, name) for name in times.models}
    found = []
    for number in range(_NUM_SEARCHES):
        choice = {name: ways[-(number % 2)] for name, ways in options.items()}
        found.append(_annealed(times, options, choice, num_tries, random))
    return min(found, key=lambda one: makespan_s(times, *one))


def _annealed(
    times: RunTimes,
    options: Mapping[str, Sequence[tuple[int, int]]],
    choice: Choice,
    num_tries: int,
    random: Random,
) -> tuple[Choice, list[str]]:
    """Return the best list that random changes of a first choice lead to."""
    names = list(options)
    order = _by_inputs(times, sorted(names, key=lambda name: -times.alone_s(name, choice[name])))
    known: dict[object, float] = {}  # few models have few lists

    def seconds(choice: Choice, order: Sequence[str]) -> float:
        key = *choice.values(), *order
        if key not in known:
            known[key] = makespan_s(times, choice, order)
        return known[key]

    now_s = best_s = seconds(choice, order)
    best = dict(choice), list(order)
    has_inputs = any(times.inputs.values())
    for number in range(num_tries):
        heat = 0.03 * best_s * (1 - number / num_tries)
        next_choice, next_order = dict(choice), list(order)
        if random.random() < 0.5:
            name = random.choice(names)
            next_choice[name] = random.choice(options[name])
        else:
            name = next_order.pop(random.randrange(len(next_order)))
            next_order.insert(random.randrange(len(next_order) + 1), name)
            if has_inputs:
                next_order = _by_inputs(times, next_order)
        next_s = seconds(next_choice, next_order)
        if next_s <= now_s or random.random() < exp((now_s - next_s) / max(1e-9, heat)):
            choice, order, now_s = next_choice, next_order, next_s
        if next_s < best_s:
            best, best_s = (dict(next_choice), list(next_order)), next_s
    return best


def list_devices(free_s: list[float], dp: int, tp: int) -> tuple[list[int], float]:
    """Return the first devices of `dp` groups of `tp` devices that are free first, and when they are."""
    ready_s = free_s
    if tp > 1:
        ready_s = [max(free_s[at : at + tp]) for at in range(0, len(free_s) - tp + 1, tp)]
    groups = sorted(range(len(ready_s)), key=ready_s.__getitem__)[:dp]
    return [at * tp for at in groups], ready_s[groups[-1]]


def _by_inputs(times: RunTimes, order: Sequence[str]) -> list[str]:
    """Return the order with each model after its inputs."""
    placed: dict[str, None] = {}
    left = list(reversed(order))
    while left:
        name = left[-1]
        if missing := [source for source in times.inputs[name] if source not in placed]:
            left += reversed(missing)
        else:
            placed[left.pop()] = None
    return list(placed)


def narrow(times: RunTimes, name: str) -> list[tuple[int, int]]:
    """Return the (dp, tp) of a model in which each replica has as few devices as it can."""
    least = min(times.problem.costs[name])
    return [plan for plan in times.plans(name) if plan[1] == least]


def makespan_s(times: RunTimes, choice: Choice, order: Sequence[str]) -> float:
    """Return the seconds that models take if each, in this order, starts on devices that are free first."""
    found_s, spans = _makespan_s(times, choice, order, {})
    if floors := times.circles.floors_s(spans):
        found_s, _ = _makespan_s(times, choice, order, floors)
    return found_s


def _makespan_s(
    times: RunTimes, choice: Choice, order: Sequence[str], floors: Mapping[str, float]
) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the makespan, and the begin and end of models that wait for each other, which are at least
    `floors`.

    A model that follows one on a device that also waits for it lets that one be loaded once more.
    """
    free_s = [0.0] * times.num_devices
    ended_s: dict[str, float] = {}
    holders: dict[int, str] = {}
    spans: dict[str, tuple[float, float]] = {}
    for name in order:
        dp, tp = choice[name]
        groups, start_s = list_devices(free_s, dp, tp)
        end_s = start_s + times.alone_s(name, (dp, tp))
        if times.circles.of[name]:
            devices = [device for at in groups for device in range(at, at + tp)]
            end_s += times.circles.reload_s(name, (holders.get(device) for device in devices))
            holders.update(dict.fromkeys(devices, name))
            end_s = max(end_s, floors.get(name, 0.0))
            spans[name] = start_s + times.loading_s(name, tp), end_s
        for source in times.inputs[name]:
            end_s = max(end_s, ended_s.get(source, 0.0) + times.last_s(name, tp))
        ended_s[name] = end_s
        for at in groups:
            free_s[at : at + tp] = [end_s] * tp
    return max(free_s), spans


def plan_of_list(times: RunTimes, choice: Choice, order: Sequence[str]) -> Plan:
    """Return the plan in which models start in this order, each on the devices that are free first."""
    free_s = [0.0] * times.num_devices
    replicas: list[PlannedReplica] = []
    for name in order:
        dp, tp = choice[name]
        groups, start_s = list_devices(free_s, dp, tp)
        for at in groups:
            free_s[at : at + tp] = [start_s + times.alone_s(name, (dp, tp))] * tp
            replicas.append(PlannedReplica(name, tuple(range(at, at + tp))))
    return Plan("moldable_list", (Stage(tuple(replicas)),), makespan_s(times, choice, order))
