"""How many instances the requests of others need, so that offline work has the rest for itself.

Beside others, little offline work can run at an instance that forms its own batches (`offline_room.py`). Two
people at two instances leave hardly anything of both. At one of them they hardly notice each other, and the
other instance is free. So while there is offline work, others go to as few instances as make them longer by a
small share. It is predicted from how many of them run at a time, and from how long the prefills are that
they ask for: a step is longer by each further decode, and each prefill stops all that decode beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto.cluster.offline_room import SHARE
from stretto.costs.learned_steps import LearnedSteps

_FEWER = 0.7
"""Part of the share up to which they go to fewer instances than they do."""
_MEAN_S = 20.0
"""Seconds over which numbers of requests and of prefills are averaged."""
_MOST_FILLED = 0.7
"""Part of the places, and of the tokens, of an instance up to which others fill it."""


@dataclass(frozen=True, slots=True)
class RoomPerInstance:
    """What the instances have room for, each: requests and tokens."""

    num_slots: int
    capacity_tokens: int


class KeptFree:
    """The requests that are not offline, at all instances of a table together.

    Attributes:
        longer: part by which they are longer at as many instances as they go to than at all.
    """

    def __init__(self) -> None:
        self._num_running = self._running_tokens = 0
        self._mean_running = self._prefills_per_s = self._mean_tokens = 0.0
        self._seen = 0.0  # part of a mean's weight that is of seconds in which there were any
        self._last_s: float | None = None
        self._num_used = 1
        self.longer = 0.0

    def started(self, num_tokens: int, prefill_s: float, now_s: float) -> None:
        """Note that a request of so many tokens, prompt and answer, is sent to an instance."""
        self._advance(now_s)
        self._num_running += 1
        self._running_tokens += num_tokens
        self._prefills_per_s += prefill_s / _MEAN_S

    def ended(self, num_tokens: int, now_s: float) -> None:
        """Note that a request has left its instance."""
        self._advance(now_s)
        self._num_running -= 1
        self._running_tokens -= num_tokens

    def num_used(self, number: int, rooms: RoomPerInstance, steps: LearnedSteps, now_s: float) -> int:
        """Return how many of so many alike instances the requests go to."""
        self._advance(now_s)
        used = min(number, self._num_used)
        while used < number and self._longer(used, number, rooms, steps) > SHARE:
            used += 1
        while used > 1 and self._longer(used - 1, number, rooms, steps) <= _FEWER * SHARE:
            used -= 1
        self._num_used, self.longer = used, self._longer(used, number, rooms, steps) if used < number else 0.0
        return used

    def _longer(self, num_used: int, number: int, rooms: RoomPerInstance, steps: LearnedSteps) -> float:
        """Return the part by which requests are longer at some instances than at all; infinite if these have
        no room.
        """
        seen = max(1e-9, self._seen)
        running, prefills = self._mean_running / seen, self._prefills_per_s / seen
        slots, tokens = _MOST_FILLED * rooms.num_slots, _MOST_FILLED * rooms.capacity_tokens
        if running > num_used * slots or self._mean_tokens / seen > num_used * tokens:
            return math.inf

        def seconds(num: int) -> float:
            neighbours = max(0.0, running / num - 1.0)
            free = 1.0 - prefills / num
            step_s = steps.per_output_s + steps.per_neighbour_s * neighbours
            return step_s / free if free > 0.0 else math.inf

        alone_s = seconds(number)
        return seconds(num_used) / alone_s - 1.0 if alone_s < math.inf else math.inf

    def _advance(self, now_s: float) -> None:
        passed_s = 0.0 if self._last_s is None else max(0.0, now_s - self._last_s)
        weight = 1.0 - math.exp(-passed_s / _MEAN_S)
        self._seen += weight * (1.0 - self._seen)
        self._mean_running += weight * (self._num_running - self._mean_running)
        self._mean_tokens += weight * (self._running_tokens - self._mean_tokens)
        self._prefills_per_s *= 1.0 - weight
        self._last_s = now_s if self._last_s is None else max(self._last_s, now_s)
