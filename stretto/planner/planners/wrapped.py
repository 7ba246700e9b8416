"""Plans that fill one device after the other: what does not fit on a device goes on on the next one.

With n models and m devices, at most m - 1 models are split, so few replicas are loaded, and all devices end
at the same time. The order of the models says which of them are split; it is annealed.

Source: McNaughton, Scheduling with Deadlines and Loss Functions (1959). Differs: parts of a model may run at
the same time, each part must load, and models may need several devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from random import Random

from stretto.planner.run_times import RunTimes

_NUM_TRIES = 1500
LEAST_SHARE = 0.02
"""Least share of a model's calls that a replica gets."""


def wrapped(times: RunTimes) -> list[tuple[str, int, float]]:
    """Return the replicas of the best plan found, by start: model, tensor parallelism and share of the calls.

    Returns none if some model waits for another.
    """
    if any(times.inputs.values()) or any(times.circles.of.values()):
        return []
    names = times.models
    random = Random(0)
    order = [(name, _cheapest_tp(times, name)) for name in names]
    order.sort(key=lambda one: (-one[1], -times.run_s(one[0], one[1], 1.0)))
    now_s = best_s = _least_limit_s(times, order, 1.0)
    best = order
    for number in range(_NUM_TRIES):
        changed = list(order)
        at = random.randrange(len(changed))
        name, tp = changed.pop(at)
        if random.random() < 0.15:
            tp = random.choice(list(times.problem.costs[name]))
        changed.insert(random.randrange(len(changed) + 1), (name, tp))
        changed.sort(key=lambda one: -one[1])
        heat = 0.01 * best_s * (1 - number / _NUM_TRIES) ** 2
        limit_s = now_s - heat * log(1 - random.random())
        if _filled(times, changed, limit_s) is None:
            continue
        order, now_s = changed, _least_limit_s(times, changed, limit_s)
        if now_s < best_s:
            best, best_s = order, now_s
    parts = _filled(times, best, best_s)
    assert parts is not None
    return [part for _, part in sorted(parts)]


def _cheapest_tp(times: RunTimes, name: str) -> int:
    """Return the number of devices of a replica on which a model takes the least device time."""
    return min(
        times.problem.costs[name],
        key=lambda tp: tp * (times.loading_s(name, tp) + times.run_s(name, tp, 1.0)),
    )


def _least_limit_s(times: RunTimes, order: Sequence[tuple[str, int]], high_s: float) -> float:
    """Return the least time, within 0.1 %, in which the devices can be filled; a guess is `high_s`."""
    while _filled(times, order, high_s) is None:
        high_s *= 2
    low_s = 0.98 * high_s
    while _filled(times, order, low_s) is not None:
        low_s, high_s = 0.98 * low_s, low_s
    while high_s - low_s > 0.001 * high_s:
        middle_s = (low_s + high_s) / 2
        if _filled(times, order, middle_s) is None:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _filled(
    times: RunTimes, order: Sequence[tuple[str, int]], limit_s: float
) -> list[tuple[float, tuple[str, int, float]]] | None:
    """Fill the devices up to a time. Returns each replica with its start; None if some do not fit."""
    num = times.num_devices
    free_s = [0.0] * num
    parts: list[tuple[float, tuple[str, int, float]]] = []
    device = 0
    for model, tp in order:
        left, loading_s = 1.0, times.loading_s(model, tp)
        device -= device % tp
        while True:
            if device + tp > num:
                return None
            start_s = max(free_s[device : device + tp])
            room_s = limit_s - start_s - loading_s
            share = times.share_in(model, tp, room_s) if room_s > 0 else 0.0
            if share >= left:
                share, end_s = left, start_s + loading_s + times.run_s(model, tp, left)
            else:
                end_s = limit_s
                if left - share < LEAST_SHARE:
                    share = left - LEAST_SHARE
            if share >= LEAST_SHARE or share >= left:
                parts.append((start_s, (model, tp, share)))
                free_s[device : device + tp] = [end_s] * tp
                left -= share
            if left <= 1e-9:
                break
            device += tp
    return parts
