"""An emulated engine that answers in batches, such as embedding: it takes the seconds of its profile."""

from __future__ import annotations

import asyncio
from collections import deque

from stretto.emulate.clock import EmulatedClock
from stretto.emulate.lag import LagMeter
from stretto.model.profile import Profile


class EmulatedBatches:
    """One emulated instance of a batch engine: while a batch runs, requests gather for the next one.

    A batch has whole requests, first come first served, up to the profile's maximum efficient batch; a larger
    request goes alone.
    """

    def __init__(self, profile: Profile, clock: EmulatedClock, lag: LagMeter, number: int = 0) -> None:
        self.num_running = 0
        self._profile = profile
        self.clock = clock
        self._lag = lag
        self._number = number
        self._slowness = 1.0
        self._epoch = 0
        self._waiting: deque[tuple[int, float, asyncio.Future[bool]]] = deque()
        self._running: list[tuple[float, asyncio.Future[bool]]] = []

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for the next batch."""
        return sum(not done.done() for _, _, done in self._waiting)

    def submit(self, num_units: int) -> asyncio.Future[bool]:
        """Queue a request of `num_units` units of work. Its result is True once it is answered, and False if
        it was forgotten. A request that is cancelled while it waits takes no part in a batch.
        """
        self.clock.arrive()
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_units, self.clock.now_s, done))
        if not self._running:
            self._begin()
        return done

    def slow_down(self, factor: float) -> None:
        """Let each batch that begins from now on take `factor` times its predicted time."""
        self._slowness = factor

    def empty(self) -> None:
        """Forget all requests, as a restart does."""
        forgotten = [done for _, done in self._running] + [done for _, _, done in self._waiting]
        self._running, self.num_running = [], 0
        self._waiting.clear()
        self._epoch += 1
        for done in forgotten:
            if not done.done():
                done.set_result(False)

    def _begin(self) -> None:
        num_units = 0
        while self._waiting:
            units, arrived_s, done = self._waiting[0]
            if not done.done():  # else its client has left
                if self._running and num_units + units > self._profile.max_efficient_batch:
                    break
                self._running.append((arrived_s, done))
                num_units += units
            self._waiting.popleft()
        self.num_running = len(self._running)
        if self._running:
            seconds = self._profile.batch_s(num_units) * self._slowness
            end_s, epoch = self.clock.now_s + seconds, self._epoch
            self.clock.at(end_s, lambda: self._end(epoch, end_s), self._number)

    def _end(self, epoch: int, end_s: float) -> None:
        if epoch != self._epoch:
            return
        speed, real_s = self.clock.speed, self.clock.real_s()
        ended, self._running = self._running, []
        waited_s = sum(end_s - arrived_s for arrived_s, _ in ended)
        late_s = (real_s - end_s) / speed
        self._lag.note(real_s / speed, late_s, late_s, len(ended), waited_s / speed)
        for _, done in ended:
            if not done.done():
                done.set_result(True)
        self._begin()
