"""The pace of a machine whose speed others change, told by a computation that is always the same."""

from __future__ import annotations

from statistics import median
from time import perf_counter

_NUM_TURNS = 300_000
_REPEATS = 9


def pace_s() -> float:
    """Return the seconds that one core takes for a fixed computation: the median of nine, 0.3 s in all."""
    return median(_turns_s() for _ in range(_REPEATS))


def drift(paces_s: list[float]) -> float:
    """Return the share by which a machine was slower at its slowest than at its fastest."""
    return max(paces_s) / min(paces_s) - 1.0


def _turns_s() -> float:
    begin_s = perf_counter()
    total = 0
    for number in range(_NUM_TURNS):
        total += number & 7
    return perf_counter() - begin_s
