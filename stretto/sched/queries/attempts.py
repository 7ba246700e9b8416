"""Follows the attempts of steps whose user asked for that: timeouts, further attempts, and fallback engines.

Its rules, whole:

    An attempt is a request at an engine. An item of it has failed when the engine reports a failure, or when
    the step's `timeout_s` since the request was sent is over; then that item's work at that engine is
    withdrawn. All other items go on, and each further attempt has its own time.
    A failed item is tried again after `backoff_s`, which doubles each time, `retries` times. After that it is
    tried at the fallback engine, if there is one, at once and as often.
    Only failures of engines are tried again, and no effect that must not happen twice.
    Whatever answer comes first counts, also one of an attempt that was given up.

Failures that are tried again are not reported to the query. Without a strategy nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from stretto.model.errors import (
    CapacityError,
    EffectInDoubt,
    EngineFailure,
    EngineTimeout,
    Overloaded,
    StrettoError,
)
from stretto.model.values import Failure
from stretto.sched.queries.request import StepRequest, runs_of
from stretto.sched.queries.results import Completed, Report, failed


@dataclass(slots=True, eq=False)
class _Attempt:
    """An attempt that runs, or waits to begin.

    Attributes:
        number: number of attempts at this engine before.
        is_fallback: whether the request is at the fallback engine.
        missing: items without a result.
        begins_s: time at which it is sent; None if it has been sent.
    """

    request: StepRequest
    number: int
    is_fallback: bool
    missing: set[int]
    begins_s: float | None = None


@dataclass(slots=True)
class DueAttempts:
    """The actions that are due when times have passed.

    Attributes:
        withdrawn: items whose work is to be withdrawn, before anything is sent, by engine, query and node.
        requests: requests to send.
        reports: failures for queries.
    """

    withdrawn: dict[tuple[str, str, int], set[int]] = field(default_factory=dict)
    requests: list[StepRequest] = field(default_factory=list)
    reports: list[Completed] = field(default_factory=list)


class Attempts:
    """The attempts of all steps that have a strategy: of each item without a result, the latest one.

    Attributes:
        of_query: the attempts that are followed, by query, node and item.
    """

    def __init__(self) -> None:
        self.of_query: dict[str, dict[int, dict[int, _Attempt]]] = {}
        self._due: list[tuple[float, int, _Attempt]] = []
        self._numbers = count()

    @property
    def next_s(self) -> float | None:
        """The next time at which `take` has something to do; None if there is none."""
        while self._due and not self._due[0][2].missing:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def sent(self, request: StepRequest, now_s: float) -> None:
        """Follow a request that a query has sent, if its step has a strategy. A hint is not followed."""
        if request.node.is_watched:
            self._begin(_Attempt(request, 0, False, set(range(request.lo, request.hi))), now_s)

    def judge(self, reports: Sequence[Report], now_s: float) -> Sequence[Report]:
        """Return the reports without the failures that are tried again."""
        kept: list[Report] = []
        for report in reports:
            if isinstance(report, Completed) and self._of_node(report.query, report.node):
                kept += self._judge(report, now_s)
            else:
                kept.append(report)
        return kept

    def take(self, now_s: float) -> DueAttempts:
        """Begin the attempts whose time has come, and give up those that have taken too long."""
        due = DueAttempts()
        while (next_s := self.next_s) is not None and next_s <= now_s:
            attempt = heappop(self._due)[2]
            if attempt.begins_s is None:
                self._give_up(attempt, due, now_s)
            else:
                attempt.begins_s = None
                self._watch(attempt, now_s)
                due.requests += self._rest(attempt)
        return due

    def drop(self, query: str, node: int) -> list[str]:
        """Forget the attempts of a node whose result is no longer wanted; return their engines."""
        dropped = self.of_query.get(query, {}).pop(node, {}).values()
        for attempt in dropped:
            attempt.missing.clear()
        return list(dict.fromkeys(_engine(attempt.request) for attempt in dropped))

    def end_query(self, query: str) -> None:
        """Forget the attempts of a query that has ended."""
        for node in list(self.of_query.get(query, ())):
            self.drop(query, node)
        self.of_query.pop(query, None)

    def _of_node(self, query: str, node: int) -> dict[int, _Attempt]:
        return self.of_query.get(query, {}).get(node, {})

    def _begin(self, attempt: _Attempt, now_s: float) -> None:
        request = attempt.request
        of_node = self.of_query.setdefault(request.query, {}).setdefault(request.node.id, {})
        of_node.update(dict.fromkeys(attempt.missing, attempt))
        if attempt.begins_s is None:
            self._watch(attempt, now_s)
        else:
            heappush(self._due, (attempt.begins_s, next(self._numbers), attempt))

    def _watch(self, attempt: _Attempt, now_s: float) -> None:
        timeout_s = attempt.request.node.strategy.timeout_s
        if timeout_s is not None:
            heappush(self._due, (now_s + timeout_s, next(self._numbers), attempt))

    def _judge(self, report: Completed, now_s: float) -> Iterator[Completed]:
        """Yield what the query is told of a report: its results, and the failures that are final."""
        told: dict[int, object] = {}
        for item, result in enumerate(report.results, report.lo):
            attempt = self._of_node(report.query, report.node).pop(item, None)
            if attempt is not None:
                attempt.missing.discard(item)
                if isinstance(result, Failure) and self._try_again(
                    attempt, item, item + 1, result.error, now_s
                ):
                    continue
            told[item] = result
        for lo, hi in runs_of(told):
            results = [told[item] for item in range(lo, hi)]
            yield Completed(report.query, report.node, lo, results, report.usage, report.ending)

    def _try_again(self, attempt: _Attempt, lo: int, hi: int, error: StrettoError, now_s: float) -> bool:
        """Plan a further attempt of some items; return whether there is one."""
        request, strategy = attempt.request, attempt.request.node.strategy
        is_too_large = isinstance(error, CapacityError) and not isinstance(error, Overloaded)
        has_failed = isinstance(error, EngineFailure) and not isinstance(error, EffectInDoubt)
        if not (has_failed or is_too_large) or request.node.runs_once:
            return False
        if attempt.number < strategy.retries and not is_too_large:
            again = _Attempt(
                _part(request, lo, hi), attempt.number + 1, attempt.is_fallback, set(range(lo, hi))
            )
            again.begins_s = now_s + strategy.backoff_s * 2**attempt.number
        elif strategy.fallback is not None and not attempt.is_fallback:
            elsewhere = _at(_part(request, lo, hi), strategy.fallback)
            again = _Attempt(elsewhere, 0, True, set(range(lo, hi)), begins_s=now_s)
        else:
            return False
        self._begin(again, now_s)
        return True

    def _give_up(self, attempt: _Attempt, due: DueAttempts, now_s: float) -> None:
        """Withdraw the items of an attempt that have taken too long."""
        request, items = attempt.request, sorted(attempt.missing)
        attempt.missing.clear()
        of_node = self._of_node(request.query, request.node.id)
        for item in items:
            del of_node[item]
        key = (_engine(request), request.query, request.node.id)
        due.withdrawn.setdefault(key, set()).update(items)
        timeout_s = request.node.strategy.timeout_s
        error = EngineTimeout(
            f"no answer of engine {_engine(request)!r} for {timeout_s:g} s", step=request.step
        )
        for lo, hi in runs_of(items):
            if not self._try_again(attempt, lo, hi, error, now_s):
                due.reports.append(failed(request, lo, hi, error))

    def _rest(self, attempt: _Attempt) -> list[StepRequest]:
        """Return the requests for the items of an attempt that have no result."""
        return [_part(attempt.request, lo, hi) for lo, hi in runs_of(attempt.missing)]


def _engine(request: StepRequest) -> str:
    assert request.node.engine is not None
    return request.node.engine


def _part(request: StepRequest, lo: int, hi: int) -> StepRequest:
    """Return the request for items `lo` to `hi` of a request."""
    if (lo, hi) == (request.lo, request.hi):
        return request
    cut = slice(lo - request.lo, hi - request.lo)
    inputs = dict(request.inputs)
    for port in request.each:
        column = inputs[port]
        assert isinstance(column, Sequence)
        inputs[port] = column[cut]
    units = None if request.units is None else request.units[cut]
    return replace(request, lo=lo, hi=hi, inputs=inputs, prompts=request.prompts[cut], units=units)


def _at(request: StepRequest, engine: str) -> StepRequest:
    """Return a request for another engine, whose instances hold nothing of the prompts."""
    node = replace(request.node, engine=engine)
    return replace(request, node=node, hint=None, num_held_tokens=0, hint_nodes=())
