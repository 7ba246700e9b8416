"""Endless times of arrival, and numbers of a Zipf distribution. Everything random comes from a seed."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

_BURST_S = 2.0
_BURSTS_SHARE = 0.2


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield the arrival times of a Poisson process, in seconds, with a mean of `rate_per_s` arrivals a
    second, without end.
    """
    draw = random.Random(f"poisson/{seed}")
    at_s = 0.0
    while True:
        at_s += draw.expovariate(rate_per_s)
        yield at_s


def bursts(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield arrival times in seconds, at a mean rate of `rate_per_s`, all of them within bursts that take up
    a fifth of the time, without end.

    Bursts last 2 s on average, and the pauses 8 s; within a burst arrivals are Poisson.
    """
    draw = random.Random(f"bursts/{seed}")
    start_s = 0.0
    while True:
        end_s = start_s + draw.expovariate(1 / _BURST_S)
        at_s = start_s + draw.expovariate(rate_per_s / _BURSTS_SHARE)
        while at_s < end_s:
            yield at_s
            at_s += draw.expovariate(rate_per_s / _BURSTS_SHARE)
        start_s = end_s + draw.expovariate(_BURSTS_SHARE / (_BURST_S * (1 - _BURSTS_SHARE)))


def zipf(num: int, exponent: float, seed: int) -> Iterator[int]:
    """Yield random numbers from 0 to `num` - 1 of a Zipf distribution, without end: number k has a weight of
    1 / (k + 1) ** `exponent`.
    """
    draw = random.Random(f"zipf/{seed}")
    ends = list(accumulate((k + 1) ** -exponent for k in range(num)))
    while True:
        yield min(bisect_left(ends, draw.random() * ends[-1]), num - 1)
