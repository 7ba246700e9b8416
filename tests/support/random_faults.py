"""Random plans of faults for simulations. What is drawn follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import get_args

from support.faults import Death, FaultPlan, Refusal, Slowness
from support.outages import Outage, OutageKind

_MOST_FAULTS = 12


def draw_faults(seed: int, instances: Mapping[str, int], queries: Sequence[str], until_s: float) -> FaultPlan:
    """Return a random plan of faults for a simulation: about six of all kinds together, all before `until_s`.

    Args:
        instances: number of instances of each engine.
        queries: queries whose callers may cancel.
    """
    draw = random.Random(seed)
    engines = sorted(instances)
    deaths: list[Death] = []
    slow: list[Slowness] = []
    lost: dict[str, set[int]] = {}
    cancels: dict[str, float] = {}
    refusals: list[Refusal] = []
    outages: list[Outage] = []
    kv_delay_s = 0.0
    for _ in range(draw.randint(0, _MOST_FAULTS)):
        engine = draw.choice(engines)
        instance = draw.randrange(instances[engine])
        at_s = draw.uniform(0.0, until_s)
        match draw.randrange(8):
            case 0:
                back_s = draw.choice((None, at_s + draw.uniform(0.0, until_s / 4)))
                deaths.append(Death(engine, instance, at_s, back_s))
            case 1:
                end_s = at_s + draw.uniform(0.0, until_s / 2)
                slow.append(Slowness(engine, instance, at_s, end_s, draw.choice((1.5, 4.0, 20.0))))
            case 2:
                lost.setdefault(engine, set()).add(draw.randrange(40))
            case 3 if queries:
                cancels[draw.choice(queries)] = at_s
            case 4:
                refusals.append(Refusal(engine, instance, at_s, at_s + draw.uniform(0.0, until_s / 4)))
            case 5 | 6:
                end_s = at_s + draw.uniform(0.0, until_s / 4)
                kind = draw.choice(get_args(OutageKind))
                rest_s, is_healthy = draw.choice((0.0, 2.0)), draw.random() < 0.3
                outages.append(Outage(engine, instance, at_s, end_s, kind, 1.0, rest_s, is_healthy))
            case _:
                kv_delay_s = draw.uniform(0.0, until_s / 10)
    return FaultPlan(
        tuple(deaths),
        tuple(slow),
        {engine: frozenset(numbers) for engine, numbers in lost.items()},
        kv_delay_s,
        tuple(cancels.items()),
        tuple(refusals),
        outages=tuple(outages),
    )
