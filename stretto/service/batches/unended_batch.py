"""A batch that has not ended, as the state machine of batches keeps it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from stretto.model.tasks import Objective
from stretto.service.batches.pace import BatchPace
from stretto.service.batches.records import BatchRecord, BatchStatus


@dataclass(slots=True)
class StartedLine:
    """A line that has started.

    Attributes:
        is_sent: whether it waits no more for an engine.
        is_withdrawn: whether it is to end, because it starts anew or its batch ends.
    """

    objective: Objective
    num_bytes: int
    is_sent: bool = False
    is_withdrawn: bool = False


@dataclass(slots=True)
class UnendedBatch:
    """A batch that has not ended.

    Attributes:
        pace: tells whether it is raised.
        stage: "closed" until there is a place for it, "opening", "open", or "ending".
        sizes: bytes of each of its lines, which are numbered from 0.
        is_done: whether each line is answered.
        num_left: number of lines that are not.
        next_line: the first line that has never started.
        again: lines that have started and are to be started again.
        ends_as: status that it is going to have, once none of its lines runs; None while it goes on.
        is_broken: whether its answers cannot be written.
        rests_until_s: time before which none of its lines starts, or it is not opened.
        rest_s: seconds of its last rest, if none of its lines was answered since.
    """

    record: BatchRecord
    pace: BatchPace
    stage: Literal["closed", "opening", "open", "ending"] = "closed"
    sizes: Sequence[int] = ()
    is_done: bytearray = field(default_factory=bytearray)
    num_left: int = 0
    next_line: int = 0
    again: list[int] = field(default_factory=list)
    started: dict[int, StartedLine] = field(default_factory=dict)
    ends_as: BatchStatus | None = None
    is_broken: bool = False
    rests_until_s: float = -math.inf
    rest_s: float = 0.0

    def next(self) -> int | None:
        """Return the line that is to start next; None if there is none."""
        if self.again:
            return self.again[-1]
        while self.next_line < len(self.is_done) and self.is_done[self.next_line]:
            self.next_line += 1
        return self.next_line if self.next_line < len(self.is_done) else None

    def take(self) -> int:
        """Return the line that is to start next, which starts now."""
        line = self.next()
        assert line is not None, "there is a line to start"
        if self.again:
            return self.again.pop()
        self.next_line += 1
        return line

    def may_start(self, now_s: float) -> bool:
        """Whether one of its lines may start now."""
        is_on = self.stage == "open" and self.ends_as is None and not self.is_broken
        return is_on and now_s >= self.rests_until_s and self.next() is not None
