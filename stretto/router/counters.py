"""What the router counts, and its text for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stretto.cluster.transitions import TRANSITIONS
from stretto.router.request_log import RequestTrace
from stretto.router.router_state import RouterState
from stretto.wire.metrics import (
    FIRST_TOKEN_BOUNDS_S,
    Family,
    Histogram,
    Published,
    Sample,
    one_value_each,
    render,
)

_REQUESTS = Family(
    "stretto_router_requests_total",
    "counter",
    "Requests that have ended, by status; 499: the client left; 0: the answer was cut.",
)
_ATTEMPTS = Family("stretto_router_attempts_total", "counter", "Requests sent to a worker.")
_FAILURES = Family("stretto_router_failures_total", "counter", "Attempts that failed at a worker.")
_HEDGES = Family(
    "stretto_router_hedges_total", "counter", "Requests sent a second time, beside an attempt that was slow."
)
_RUNNING = Family("stretto_router_running", "gauge", "Requests that run at a worker.")
_WAITING = Family("stretto_router_waiting", "gauge", "Requests that wait in the router.")
_CLIENTS = Family("stretto_router_open", "gauge", "Requests at the router, waiting or running.")
_HELD = Family("stretto_router_held_bytes", "gauge", "Bytes that are held for clients.")
_STATE = Family("stretto_router_worker_state", "gauge", "1 for the state that a worker is in.")
_WANTS_KEY = Family(
    "stretto_router_worker_wants_key",
    "gauge",
    "1 for a worker that refuses requests without a key, and for which the settings have none.",
)
_PROMPT = Family("stretto_router_prompt_tokens_total", "counter", "Prompt tokens, as workers report them.")
_PREDICTED = Family(
    "stretto_router_cached_tokens_predicted_total",
    "counter",
    "Prompt tokens that the chosen worker was believed to hold, of answers with reported counts.",
)
_CACHED = Family(
    "stretto_router_cached_tokens_total",
    "counter",
    "Prompt tokens found in a worker's cache, as it reports them.",
)
_FIRST_BYTE = Family(
    "stretto_router_first_byte_seconds",
    "histogram",
    "Seconds until the first byte of an answer.",
)
_TOTAL = Family("stretto_router_request_seconds", "histogram", "Seconds until the end of an answer.")
_DECISION = Family("stretto_router_decision_seconds_total", "counter", "Seconds spent on choosing workers.")


class Counters:
    """The counts of a router since its start."""

    def __init__(self) -> None:
        self._statuses: Counter[int] = Counter()
        self._attempts: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()
        self._prompt = self._predicted = self._cached = self._hedges = 0
        self._first_byte = Histogram(FIRST_TOKEN_BOUNDS_S)
        self._total = Histogram(FIRST_TOKEN_BOUNDS_S)
        self._decision_s = 0.0

    def count(self, trace: RequestTrace) -> None:
        """Count a request that has ended."""
        self._statuses[trace.status] += 1
        for one in trace.tries:
            self._attempts[one.action.worker] += 1
            self._failures[one.action.worker] += bool(one.failure)
        self._hedges += trace.was_hedged
        self._prompt += trace.usage.num_prompt or 0
        self._cached += trace.usage.num_cached or 0
        if trace.usage.num_prompt is not None:  # only these can be compared with what was found
            self._predicted += trace.predicted_cached
        if trace.decided_s is not None:
            self._decision_s += trace.decided_s - trace.arrived_s
        if trace.first_byte_s is not None:
            self._first_byte.observe(trace.first_byte_s - trace.arrived_s)
        if trace.ended_s is not None:
            self._total.observe(trace.ended_s - trace.arrived_s)

    def count_refusal(self, status: int) -> None:
        """Count a request that the router has refused itself, before it was placed."""
        self._statuses[status] += 1

    def render(self, router_state: RouterState, num_held: int) -> str:
        """Return all counts, the present loads of the router, and the number of bytes that are held for
        clients, in Prometheus's text format.
        """
        workers = router_state.workers()
        label = {worker.id: {"worker": str(worker.id), "url": worker.config.url} for worker in workers}
        states = [
            Sample(_STATE.name, float(worker.state == state), {**label[worker.id], "state": state})
            for worker in workers
            for state in TRANSITIONS
            if state != "gone"
        ]
        running = [Sample(_RUNNING.name, router_state.num_running(w.id), label[w.id]) for w in workers]
        return render(
            [
                _labelled(_REQUESTS, "status", self._statuses),
                _labelled(_ATTEMPTS, "worker", self._attempts),
                _labelled(_FAILURES, "worker", self._failures),
                (_STATE, states),
                (_RUNNING, running),
                (_WANTS_KEY, [Sample(_WANTS_KEY.name, float(w.wants_key), label[w.id]) for w in workers]),
                *one_value_each({**self._single(router_state), _HELD: num_held}),
                (_FIRST_BYTE, self._first_byte.samples(_FIRST_BYTE, {})),
                (_TOTAL, self._total.samples(_TOTAL, {})),
            ]
        )

    def _single(self, router_state: RouterState) -> Mapping[Family, float]:
        """Return the metrics that have one value for the whole router."""
        return {
            _WAITING: router_state.num_waiting,
            _CLIENTS: router_state.num_clients,
            _HEDGES: self._hedges,
            _PROMPT: self._prompt,
            _PREDICTED: self._predicted,
            _CACHED: self._cached,
            _DECISION: self._decision_s,
        }


def _labelled(family: Family, label: str, counts: Counter[int]) -> Published:
    """Return a metric with a value for each number that is counted, such as a status; it is the label."""
    return family, [Sample(family.name, count, {label: str(one)}) for one, count in sorted(counts.items())]
