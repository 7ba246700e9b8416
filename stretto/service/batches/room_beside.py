"""How many lines of batches run at workers, alone and beside the requests of others.

Each request in a batch of a worker slows the others there, and each prefill stops them. So while others ask,
one line runs at each worker: with 8, a person's requests took 1.5 times as long at the 95th percentile.
The others are withdrawn, and begin again later: where they came to their end, it was 1.9 times. Otherwise so
many run that a worker is well used.
"""

from __future__ import annotations

import math

from stretto.service.pool.pool import WorkerPool

_LINES_BESIDE, _LINES_ALONE = 1, 64
"""Lines at each worker beside requests of others, and without."""
_QUIET_S = 5.0
"""Seconds without requests of others after which lines take all room again."""


class RoomBeside:
    """The room of lines at the workers of a pool."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._asked_s = -math.inf

    def __call__(self, num_lines: int, now_s: float) -> int:
        """Return how many lines may run now, of which so many have started."""
        router_state = self._pool.front.router_state
        if router_state.num_clients > num_lines:
            self._asked_s = now_s
        is_quiet = now_s - self._asked_s > _QUIET_S
        return (_LINES_ALONE if is_quiet else _LINES_BESIDE) * max(1, len(router_state.workers()))
