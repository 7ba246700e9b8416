"""The lines that have started, of all batches together: how many may be, and whose turn the next one is.

Lines start in turns of the tenants, and for each in the order in which its batches expire. Few of them wait
for an engine at a time, because what waits there cannot be taken back without cost, and counts among the
requests that wait; as many run as engines take.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.model.tasks import Objective
from stretto.service.batches.actions import BatchAction, WithdrawLine
from stretto.service.batches.unended_batch import StartedLine, UnendedBatch

MAX_WAITING = 32
"""Lines that have started and wait for an engine."""
MAX_STARTED = 2048
"""Lines that have started."""
MAX_STARTED_BYTES = 64_000_000
"""Bytes of the lines that have started; one line alone may have more."""


class StartedLines:
    """The numbers of lines that have started, and the tenant whose turn was the last."""

    def __init__(self) -> None:
        self._last_tenant = ""
        self._num_started = self._num_waiting = self._num_bytes = 0

    def next(self, open_batches: Iterable[UnendedBatch], now_s: float) -> UnendedBatch | None:
        """Return the batch whose next line is to start; None if there is none, or as many have as may."""
        if self._num_waiting >= MAX_WAITING or self._num_started >= MAX_STARTED:
            return None
        firsts: dict[str, UnendedBatch] = {}
        for one in open_batches:
            first = firsts.get(one.record.tenant)
            if (first is None or one.record.expires_at < first.record.expires_at) and one.may_start(now_s):
                firsts[one.record.tenant] = one
        if not firsts:
            return None
        tenant = min([name for name in firsts if name > self._last_tenant] or firsts)
        one = firsts[tenant]
        line = one.next()
        assert line is not None, "it may start one"
        if self._num_started and self._num_bytes + one.sizes[line] > MAX_STARTED_BYTES:
            return None
        self._last_tenant = tenant
        return one

    def start(self, one: UnendedBatch) -> tuple[int, Objective]:
        """Start the next line of a batch; return it, and its class."""
        line = one.take()
        objective: Objective = "throughput" if one.pace.is_raised else "offline"
        one.started[line] = StartedLine(objective, one.sizes[line])
        self._num_started += 1
        self._num_waiting += 1
        self._num_bytes += one.sizes[line]
        return line, objective

    def sent(self, started: StartedLine, *, is_sent: bool) -> None:
        """Note that a line waits no more for an engine, or waits again."""
        if started.is_sent != is_sent:
            started.is_sent = is_sent
            self._num_waiting += -1 if is_sent else 1

    def end(self, one: UnendedBatch, line: int) -> StartedLine:
        """Take a line away that has ended, and return it."""
        started = one.started.pop(line)
        self._num_started -= 1
        self._num_waiting -= not started.is_sent
        self._num_bytes -= started.num_bytes
        return started

    def withdraw(
        self, batches: Iterable[UnendedBatch], objective: Objective | None = None
    ) -> list[BatchAction]:
        """Have lines end that have started: all of some batches, or those of a class that wait for an engine.

        Lines that wait come first, so that none of them takes the place of one that an engine has.
        """
        waiting: list[BatchAction] = []
        sent: list[BatchAction] = []
        for one in batches:
            for line, started in one.started.items():
                if started.is_withdrawn:
                    continue
                if objective is None or (not started.is_sent and started.objective == objective):
                    started.is_withdrawn = True
                    (sent if started.is_sent else waiting).append(WithdrawLine(one.record.id, line))
        return waiting + sent

    def check_invariants(self, batches: Iterable[UnendedBatch]) -> None:
        """Check that counts are the sums of what has started. For tests."""
        started = [line for one in batches for line in one.started.values()]
        assert self._num_started == len(started) <= MAX_STARTED
        assert self._num_waiting == sum(not line.is_sent for line in started)
        assert self._num_bytes == sum(line.num_bytes for line in started)
