"""The observers of a door, in one place: what counts its requests, and what writes a line of log for each."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.operate.program_times import ProgramTimes
from stretto.operate.request_lines import RequestLines
from stretto.operate.request_metrics import RequestMetrics
from stretto.sched.observer import Observer, Observers


class Watch:
    """What a door's observers have seen.

    Args:
        more: further observers, such as an exporter of spans.

    Attributes:
        metrics: counts of requests.
        programs: where the time of the last programs went.
        observers: all observers, which are to be shown each request.
    """

    def __init__(self, more: Iterable[Observer] = ()) -> None:
        self.metrics = RequestMetrics()
        self.programs = ProgramTimes()
        self.observers = Observers([self.metrics, self.programs, RequestLines(), *more])
