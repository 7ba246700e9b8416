"""Compiles the fast simulation with numba, if that is installed (extra `planner`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from stretto.planner import idle_blocks, whole_prefills

Simulation = Callable[..., whole_prefills.Simulated]


@cache
def compiled() -> Simulation | None:
    """Return the compiled `whole_prefills.simulate`; its requests are arrays. None without numba.

    The first call compiles it, for some seconds; later processes find it on disk.
    """
    try:
        import numba
    except ImportError:  # it is not installed, or refuses this version of Python or numpy
        return None
    for part in (idle_blocks.evict, *whole_prefills.PARTS):
        numba.extending.register_jitable(part)
    simulation: Simulation = numba.njit(cache=True)(whole_prefills.simulate)
    return simulation
