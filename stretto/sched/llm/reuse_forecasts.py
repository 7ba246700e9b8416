"""Forecasts when a query needs prompts again that it has had computed, for the eviction of KV.

When an LLM request has ended, its prompt, and the answer if that is text, are compared with what is to come:

- Other requests of the graph are known to begin alike (`graph/reuse.py`). Those that have arrived need it at
  once; those that have not, in as many seconds as lie between by the graph's predicted times.
- Where the graph knows none, because it grows or belongs to a session, the time is learned: how long it took
  until a request went on from an answer of this step that called the same tool. It is what a tool, a user or
  a search took in between, so it is kept for the session itself, and for all sessions of the same template.
- A query whose graph cannot grow never needs the rest again, except for the leading constants, which may be
  in the prompts of other queries. Otherwise nothing is known of the rest.

A request that never comes leaves a forecast that is late. Instances let that fade, and forget it when its
query ends.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from stretto.model.tasks import Reuse
from stretto.model.values import Prompt, Segment, answer_segment, num_common_segments
from stretto.sched.queries.request import StepRequest

_MAX_MEMBERS = 64
_MAX_ENDED = 4
_TOOL = re.compile(r"\s*+(\w++)\s*+[:(\[]")  # possessive: a long text costs no search
_MAX_SOURCES = 1024
_MAX_TIMES = 32
_MIN_OWN = 3
"""Number of times of a session from which on they count instead of those of all sessions."""

Source: TypeAlias = tuple[str, str, str]
"""Template, step and tool of an answer."""
_Uses: TypeAlias = list[tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected time until a request goes on from an earlier one, and how many segments at the end of that
    one's prompt and answer it does not begin with.
    """

    in_s: float
    num_left_out: int


class ReuseTimes:
    """A predictor of the seconds between the end of an LLM request and the next one that goes on from it: the
    median of the last ones.

    If there are too many sources (steps and tools), the one that was updated longest ago is forgotten.
    """

    def __init__(self) -> None:
        self._times_s: dict[Source, deque[float]] = {}
        self._num_left_out: dict[Source, int] = {}

    def expected(self, source: Source) -> Expected | None:
        """Return when the next request is expected and what it goes on from; None if none has been
        observed.
        """
        times_s = self._times_s.get(source)
        if not times_s:
            return None
        return Expected(sorted(times_s)[len(times_s) // 2], self._num_left_out[source])

    def num_observed(self, source: Source) -> int:
        """Return how many times count for the median of this source."""
        return len(self._times_s.get(source, ()))

    def observe(self, source: Source, time_s: float, num_left_out: int) -> None:
        """Learn that it took `time_s` seconds, and that the last `num_left_out` segments were not used."""
        times_s = self._times_s.pop(source, None) or deque(maxlen=_MAX_TIMES)
        times_s.append(time_s)
        self._times_s[source] = times_s
        self._num_left_out[source] = num_left_out
        if len(self._times_s) > _MAX_SOURCES:
            oldest = next(iter(self._times_s))
            del self._times_s[oldest], self._num_left_out[oldest]


def expected_by(own: ReuseTimes, all_: ReuseTimes, source: Source) -> Expected | None:
    """Return what is expected by the session's own times if there are enough, else by those of all
    sessions.
    """
    return (own if own.num_observed(source) >= _MIN_OWN else all_).expected(source)


def source_of(request: StepRequest, answer: object) -> Source:
    """Return the source of an answer: which step of which app wrote it, and the tool that it calls first.

    A tool is a name before a colon or a bracket, at the beginning of the first item of a list, or of a text.
    """
    first = answer[0] if isinstance(answer, list) and answer else answer
    found = _TOOL.match(first) if isinstance(first, str) else None
    return request.node.template, request.step, found.group(1) if found else ""


@dataclass(frozen=True, slots=True)
class _Ended:
    prompt: Prompt
    source: Source
    at_s: float


@dataclass(slots=True)
class _OfQuery:
    num_open: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    latest: deque[_Ended] = field(default_factory=lambda: deque(maxlen=_MAX_ENDED))
    times: ReuseTimes = field(default_factory=ReuseTimes)


class ReuseForecasts:
    """A forecaster of what the queries at one LLM engine need again, and when.

    It is told of each request that arrives and ends, until `forget` ends the query.
    """

    def __init__(self) -> None:
        self._queries: dict[str, _OfQuery] = {}
        self._times = ReuseTimes()

    def arrived(self, request: StepRequest, now_s: float) -> None:
        """Note that a request of a query is ready to run; learn from it if it goes on from an earlier one."""
        of_query = self._queries.setdefault(request.query, _OfQuery())
        node = request.node.id
        of_query.num_open[node] = of_query.num_open.get(node, 0) + request.hi - request.lo
        of_query.ended.discard(node)
        if request.prompts and of_query.latest:
            self._learn(of_query, request.prompts[0], now_s)

    def ended(
        self,
        request: StepRequest,
        prompt: Prompt,
        answer: object,
        now_s: float,
        written: Segment | None = None,
    ) -> Reuse | None:
        """Note that one item of a request has been answered; return what the query will need again of its
        prompt and its answer, and when. None if nothing is known.

        `written` is the answer as it was generated, if that is known.
        """
        of_query = self._queries.get(request.query)
        if of_query is None:
            return None
        self._close(of_query, request.node.id, 1)
        uses, reuse = self._known(of_query, request), request.node.reuse
        if written is None and isinstance(answer, str):
            written = answer_segment(answer)
        whole = (*prompt, written) if written is not None and written.text else prompt
        if reuse is not None and reuse.is_whole and request.record.arrival_s < math.inf:
            if not uses and len(of_query.ended) >= reuse.num_requests:
                return None
            uses.append((reuse.num_constants, None))
        else:
            uses = self._learned(of_query, request, whole, answer, uses, now_s)
            if not uses:
                return None
            uses.append((len(whole), None))
        return Reuse(request.query, whole, tuple(uses), request.record.tenant)

    def withdrawn(self, query: str, node: int, num_items: int | None = None) -> None:
        """Note that the requests of a node, or of that many of its items, will not run, or have failed
        for good.
        """
        if (of_query := self._queries.get(query)) is not None:
            num_open = of_query.num_open.get(node, 0)
            self._close(of_query, node, num_open if num_items is None else num_items)

    def forget(self, query: str) -> None:
        """Forget a query that has ended."""
        self._queries.pop(query, None)

    def _close(self, of_query: _OfQuery, node: int, num_items: int) -> None:
        num_open = of_query.num_open.pop(node, 0) - num_items
        if num_open > 0:
            of_query.num_open[node] = num_open
        else:
            of_query.ended.add(node)

    def _known(self, of_query: _OfQuery, request: StepRequest) -> _Uses:
        """Return the uses that the graph knows of, the longest first, each sooner than the one before."""
        reuse, node = request.node.reuse, request.node.id
        if reuse is None:
            return []
        uses: _Uses = []
        soonest_s = math.inf
        if node in of_query.num_open and reuse.num_own:
            uses.append((reuse.num_own, 0.0))
            soonest_s = 0.0
        for share in reuse.shares:
            in_s = math.inf
            first = node - reuse.node
            to_come = (
                (first + member, start_s)
                for member, start_s in share.members
                if first + member != node and first + member not in of_query.ended
            )
            for other, start_s in islice(to_come, _MAX_MEMBERS):
                is_there = other in of_query.num_open
                in_s = min(in_s, 0.0 if is_there else max(0.0, start_s - reuse.end_s))
            if in_s < soonest_s:
                uses.append((share.num_parts, in_s))
                soonest_s = in_s
        return uses

    def _learned(
        self,
        of_query: _OfQuery,
        request: StepRequest,
        whole: Prompt,
        answer: object,
        uses: _Uses,
        now_s: float,
    ) -> _Uses:
        """Return `uses` with a learned one, if the graph knows no use of more than constants."""
        if request.decode is None:
            return uses
        source = source_of(request, answer)
        of_query.latest.append(_Ended(whole, source, now_s))
        num_constants = next((i for i, segment in enumerate(whole) if segment.name is not None), len(whole))
        expected = expected_by(of_query.times, self._times, source)
        if expected is None or any(num > num_constants for num, _ in uses):
            return uses
        return [(max(0, len(whole) - expected.num_left_out), expected.in_s), *uses]

    def _learn(self, of_query: _OfQuery, prompt: Prompt, now_s: float) -> None:
        """Learn how long it took until `prompt` went on from the latest request that it begins like."""
        for ended in reversed(of_query.latest):
            num_common = num_common_segments(ended.prompt, prompt)
            if any(segment.name is not None for segment in ended.prompt[:num_common]):
                of_query.latest.remove(ended)
                for times in (of_query.times, self._times):
                    times.observe(ended.source, now_s - ended.at_s, len(ended.prompt) - num_common)
                return
