"""Compiles the fast simulation with numba, if that is installed (extra `planner`)."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import astuple, fields
from functools import cache

import numpy as np

from stretto.costs.step_arrays import Ints
from stretto.planner import fast_scheduler
from stretto.planner.fast_scheduler import Simulated
from stretto.planner.fast_state import FastState, Numbers
from stretto.planner.step_log import StepLog

Simulation = Callable[[Ints, Ints, Ints, Numbers], Simulated]
_RECORD = np.dtype([(field.name, np.int64) for field in fields(Numbers)])


@cache
def compiled() -> Simulation | None:
    """Return the compiled `fast_scheduler.simulate`; its requests are arrays. None without numba.

    The first call compiles it, for some seconds; later processes find it on disk.
    """
    try:
        import numba
    except ImportError:  # it is not installed, or refuses this version of Python or numpy
        return None
    for made in (FastState, StepLog):
        numba.extending.overload(made)(_maker(namedtuple(made.__name__, made.__slots__)))
    for part in fast_scheduler.PARTS:
        numba.extending.register_jitable(part)
    simulation = numba.njit(cache=True)(fast_scheduler.simulate)

    def run(prompts: Ints, outputs: Ints, previous: Ints, numbers: Numbers) -> Simulated:
        record = np.array([astuple(numbers)], _RECORD)
        found: Simulated = simulation(prompts, outputs, previous, record[0])
        numbers.num_preemptions = int(record["num_preemptions"][0])
        return found

    return run


def _maker(fields: type) -> Callable[..., object]:
    def typed(*columns):  # type: ignore[no-untyped-def]  # numba wants equal signatures
        return lambda *columns: fields(*columns)

    return typed
