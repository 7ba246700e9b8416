"""The observers of a door, in one place: what counts its requests, and what writes a line of log for each."""

from __future__ import annotations

from stretto.operate.certificates import Certificates
from stretto.operate.prefix.guard import PrefixGuard
from stretto.operate.program_times import ProgramTimes
from stretto.operate.request_lines import RequestLines
from stretto.operate.request_metrics import RequestMetrics
from stretto.operate.spans import Spans
from stretto.operate.traffic import RecentTraffic
from stretto.sched.observer import Observers


class Watch:
    """What a door's observers have seen.

    Args:
        spans: makes spans of requests, for a collector; None makes none.

    Attributes:
        metrics: counts of requests.
        programs: where the time of the last programs went.
        prompts: which programs send prompts that change before text that stays.
        traffic: requests of the last minutes, for simulations.
        certificates: certificates of TLS, which are read anew when their files change.
        observers: all observers, which are to be shown each request.
    """

    def __init__(self, spans: Spans | None = None) -> None:
        self.metrics = RequestMetrics()
        self.programs = ProgramTimes()
        self.prompts = PrefixGuard()
        self.traffic = RecentTraffic()
        self.certificates = Certificates()
        self.spans = spans
        self.observers = Observers([self.metrics, self.programs, self.traffic, RequestLines()])
        if spans is not None:
            self.observers.add(spans)

    def close(self) -> None:
        """Send what is left to send."""
        if self.spans is not None:
            self.spans.close()
