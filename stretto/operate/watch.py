"""The observers of a door, in one place: what counts its requests, and what writes a line of log for each.
Requests are shown to them many at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stretto.cluster.placement_request import PromptKey
from stretto.operate.certificates import Certificates
from stretto.operate.prefix.guard import PrefixGuard
from stretto.operate.program_times import ProgramTimes
from stretto.operate.request_lines import RequestLines
from stretto.operate.request_metrics import RequestMetrics
from stretto.operate.spans import Spans
from stretto.operate.traffic import RecentTraffic
from stretto.sched.observer import Observer, Observers, RequestEvent
from stretto.sched.request_trace import RequestTrace

_MOST = 128
"""Events that wait: about a millisecond of work."""


class DeferredObservers(Observer):
    """An observer that shows requests to others later: when `_MOST` events wait, or when somebody wants to
    know what the others have seen (`catch_up`).

    Attributes:
        sources: called by `catch_up`: each brings what it has seen and keeps.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = Observers(observers)
        self._waiting: list[RequestEvent] = []
        self.sources: list[Callable[[], None]] = []

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Keep a request that has arrived."""
        self._waiting.append(("on_request_arrived", trace, now_s))

    def on_request_keyed(self, trace: RequestTrace, key: PromptKey) -> None:
        """Keep the key of the prompt of a request."""
        self._waiting.append(("on_request_keyed", trace, key))

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Keep a request that has ended."""
        self._waiting.append(("on_request_ended", trace, now_s))
        if len(self._waiting) >= _MOST:
            self._show()

    def catch_up(self) -> None:
        """Show the observers all that has happened."""
        for bring in self.sources:
            bring()
        self._show()

    def _show(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._observers.on_requests(waiting)


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
