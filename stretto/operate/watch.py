"""The observers of a door, in one place: what counts its requests, and what writes a line of log for each."""

from __future__ import annotations

from stretto.operate.certificates import Certificates
from stretto.operate.deferred import DeferredObservers
from stretto.operate.prefix.guard import PrefixGuard
from stretto.operate.program_times import ProgramTimes
from stretto.operate.request_lines import RequestLines
from stretto.operate.request_metrics import RequestMetrics
from stretto.operate.spans import Spans
from stretto.operate.traffic import RecentTraffic
from stretto.sched.observer import Observers
from stretto.sched.request_trace import RequestTrace


class Watch:
    """What a door's observers have seen.

    Args:
        spans: makes spans of requests, for a collector; None makes none.

    Attributes:
        prompts: which programs send prompts that change before text that stays.
        deferred: observers that are shown requests many at a time.
        certificates: certificates of TLS, which are read anew when their files change.
        observers: all observers, which are to be shown each request.
    """

    def __init__(self, spans: Spans | None = None) -> None:
        self._metrics, self._programs, self._traffic = RequestMetrics(), ProgramTimes(), RecentTraffic()
        self.deferred = DeferredObservers([self._metrics, self._programs, self._traffic])
        self.prompts = PrefixGuard()
        self.certificates = Certificates()
        self.spans = spans
        self.observers = Observers([self.deferred, RequestLines()])
        if spans is not None:
            self.observers.add(spans)

    @property
    def metrics(self) -> RequestMetrics:
        """Counts of requests."""
        self.deferred.catch_up()
        return self._metrics

    @property
    def programs(self) -> ProgramTimes:
        """Where the time of the last programs went."""
        self.deferred.catch_up()
        return self._programs

    @property
    def traffic(self) -> RecentTraffic:
        """Requests of the last minutes, for simulations."""
        self.deferred.catch_up()
        return self._traffic

    def prefill_token_s(self, trace: RequestTrace) -> float:
        """Return the seconds of the prefill of a token of a request's model, as far as they were measured; 0
        if they are not known.
        """
        return self._programs.prefill_token_s(trace)

    def close(self) -> None:
        """Send what is left to send."""
        if self.spans is not None:
            self.spans.close()
