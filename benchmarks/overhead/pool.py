"""What it costs to decide who has room in KV memory, by how many programs are held.

The pool is measured alone, without the schedulers around it.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Hashable, Sequence

from benchmarks.report import Row, spread
from stretto.cluster.room.contexts import RoomRequest
from stretto.cluster.room.room import Entered, Room
from stretto.model.tasks import Usage

POOL = "a program that is held enters, by programs that are held"
ADMISSIONS = "admissions_per_s"
_KV_TOKENS = 200_000
_BLOCK_TOKENS = 64
_CALLS = 50
_BETWEEN_S = 0.01


def pool_rows(repetitions: int, held: Sequence[int]) -> list[Row]:
    """A row for each number of programs that are held."""
    rows = []
    for num_held in held:
        found = _per_s(num_held, repetitions)
        rows.append(Row(POOL, f"{num_held} held", spread(found, ADMISSIONS)))
    return rows


def _per_s(num_held: int, repetitions: int) -> list[float]:
    """Return admissions per CPU second, each as a mean of about `_CALLS` of them."""
    pool = HeldPrograms(num_held)
    gc.collect()
    found = []
    for _ in range(repetitions):
        pool.prepare(4 * _CALLS)
        before, start_s = pool.num_admitted, time.thread_time()
        for _ in range(_CALLS):
            pool.end_one()
        found.append((pool.num_admitted - before) / (time.thread_time() - start_s))
    return found


class HeldPrograms:
    """A full instance, and programs of many sizes that wait for room, of one request each."""

    def __init__(self, num_held: int) -> None:
        self.num_admitted = 0
        self._room = Room()
        self._room.join(0, _KV_TOKENS, 1e-4)
        self._now_s = 0.0
        self._num_prepared = 0
        self._coming: deque[RoomRequest] = deque()
        self._inside: deque[RoomRequest] = deque()
        self._requests: dict[Hashable, RoomRequest] = {}
        while len(self._room.held) < num_held:
            self._begin()

    def prepare(self, num: int) -> None:
        """Make the requests of the next `num` programs that come."""
        while len(self._coming) < num:
            number = self._num_prepared
            self._num_prepared += 1
            num_tokens = 1000 + number * 7919 % 8000
            blocks = [b"%d/%d" % (number, place) for place in range(num_tokens // _BLOCK_TOKENS)]
            request = RoomRequest(
                number, number, "agent", num_tokens, blocks, _BLOCK_TOKENS, 100, returns="likely"
            )
            self._coming.append(request)

    def end_one(self) -> None:
        """Let the program end that entered first, what fits enter, and as many others come."""
        self._now_s += _BETWEEN_S
        request = self._inside.popleft()
        self._room.ended(request.key, self._now_s, Usage(request.num_tokens, 0, 100))
        self._room.finished(request.program)
        num_before = self.num_admitted
        self._admit()
        for _ in range(self.num_admitted - num_before):
            self._begin()

    def _admit(self) -> None:
        """Send what has room now."""
        for entered in self._room.admit(self._now_s):
            self._enter(entered)

    def _enter(self, entered: Entered) -> None:
        self._room.sent(entered.key, 0)
        self._inside.append(self._requests.pop(entered.key))
        self.num_admitted += 1

    def _begin(self) -> None:
        """Let one more program come."""
        if not self._coming:
            self.prepare(1)
        self._now_s += _BETWEEN_S
        request = self._coming.popleft()
        self._requests[request.key] = request
        if (entered := self._room.arrive(request, self._now_s)) is not None:
            self._enter(entered)
        self._admit()
