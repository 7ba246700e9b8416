"""Summarises a recording: times per engine and per query, as plain data for tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.model.tasks import Usage
from stretto.trace.lanes import covered, horizon_s, origin_s, running_s
from stretto.trace.recorder import QuerySpan, Recorder, Span


@dataclass(frozen=True, slots=True)
class EngineRow:
    """The totals of one engine in a recording: its batches, their items, its busy time and its tokens.

    Attributes:
        num_instances: number of instances that ran something.
        num_batches: number of batches or LLM requests that started.
        num_items: number of items in all of them.
        busy_s: seconds in which an instance ran something, summed over instances.
        share: `busy_s` as a share of the wall time of those instances.
        usage: token counts; None if it is not an LLM engine.
    """

    engine: str
    num_instances: int
    num_batches: int
    num_items: int
    busy_s: float
    share: float
    usage: Usage | None

    @property
    def items_per_batch(self) -> float:
        """Mean number of items in a batch of this engine; 0 if it ran none."""
        return self.num_items / self.num_batches if self.num_batches else 0.0


@dataclass(frozen=True, slots=True)
class QueryRow:
    """The times of one query in a recording, in all and by engine.

    Attributes:
        wall_s: seconds from submission to reply, or to the end of the recording.
        by_engine_s: seconds that its batches and requests ran, by engine; a shared batch counts in full.
        overlap: the sum of `by_engine_s` over `wall_s`, which is the mean number of its steps that ran at
            once.
        waits: the batches and requests that the query waited for, one after the other, in time order.
    """

    query: str
    graph: str
    outcome: str
    start_s: float
    wall_s: float
    by_engine_s: Mapping[str, float]
    overlap: float
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A part of the time of a query in a recording, and the batch or LLM request (`span`)
    that the query waited for then.

    `span` is None if none of its steps ran. The query waited for `next` to begin then: its instance was busy
    or not ready, or it was held back. `next` is None if nothing ran any more.
    """

    start_s: float
    end_s: float
    span: Span | None
    next: Span | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A recording summed up: how busy each engine was, and where the time of each query went.

    `wall_s` is the time from the first recorded event to the last, in seconds.
    """

    wall_s: float
    engines: tuple[EngineRow, ...]
    queries: tuple[QueryRow, ...]


def summarise(recorder: Recorder) -> Summary:
    """Sum up a recording: how busy each engine was, and how long each query took and what it waited for.

    A batch or request that still runs counts up to the latest recorded time.
    """
    until_s = horizon_s(recorder)
    wall_s = until_s - origin_s(recorder)
    of_engine: dict[str, list[Span]] = {}
    of_query: dict[str, list[Span]] = {query: [] for query in recorder.queries}
    for span in recorder.spans:
        of_engine.setdefault(span.engine, []).append(span)
        for query in dict.fromkeys(part.query for part in span.parts):
            of_query.setdefault(query, []).append(span)
    return Summary(
        wall_s,
        tuple(_engine_row(engine, spans, until_s, wall_s) for engine, spans in of_engine.items()),
        tuple(_query_row(query, of_query[query.query], until_s) for query in recorder.queries.values()),
    )


def _engine_row(engine: str, spans: list[Span], until_s: float, wall_s: float) -> EngineRow:
    started = [span for span in spans if span.started]
    intervals: dict[int, list[tuple[float, float]]] = {}
    for span in started:
        intervals.setdefault(span.instance, []).append(running_s(span, until_s))
    busy_s = sum(covered(own) for own in intervals.values())
    num_items = sum(part.num_items for span in started for part in span.parts)
    usages = [span.usage for span in started if span.usage is not None]
    usage = None
    if usages:
        usage = Usage(
            sum(u.num_prompt_tokens for u in usages),
            sum(u.num_cached_tokens for u in usages),
            sum(u.num_output_tokens for u in usages),
        )
    available_s = wall_s * len(intervals)
    share = busy_s / available_s if available_s else 0.0
    return EngineRow(engine, len(intervals), len(started), num_items, busy_s, share, usage)


def _query_row(query: QuerySpan, spans: list[Span], until_s: float) -> QueryRow:
    end_s = until_s if query.end_s is None else query.end_s
    wall_s = end_s - query.start_s
    by_engine_s: dict[str, float] = {}
    for span in spans:
        start_s, stop_s = running_s(span, until_s)
        by_engine_s[span.engine] = by_engine_s.get(span.engine, 0.0) + stop_s - start_s
    overlap = sum(by_engine_s.values()) / wall_s if wall_s else 0.0
    chain = critical_chain(query.start_s, end_s, spans)
    return QueryRow(
        query=query.query,
        graph=query.graph,
        outcome=query.outcome,
        start_s=query.start_s,
        wall_s=wall_s,
        by_engine_s=by_engine_s,
        overlap=overlap,
        waits=chain,
    )


def critical_chain(start_s: float, end_s: float, spans: list[Span]) -> tuple[Wait, ...]:
    """Return what a query waited for in a recording, one batch or LLM request after the
    other, from its start to its end.

    It is found backwards from the end: before a span (batch or request) began, the query is taken to have
    waited for the span that ended, or delivered a piece, last until then. This is a guess, because a
    recording does not tell which step waited for which. If two spans end together, the one that began first
    is taken.
    """
    deliveries = sorted(
        (
            (time_s, -span.start_s, i)
            for i, span in enumerate(spans)
            if span.started
            for time_s in {span.end_s if span.end_s is not None else end_s, *span.marks_s}
        ),
        reverse=True,
    )
    waits: list[Wait] = []
    now_s = end_s
    after: Span | None = None
    for time_s, _, i in deliveries:
        span = spans[i]
        if time_s > now_s or not start_s <= span.start_s < time_s:
            continue
        if time_s < now_s:
            waits.append(Wait(time_s, now_s, None, after))
        waits.append(Wait(span.start_s, time_s, span))
        now_s, after = span.start_s, span
    if start_s < now_s:
        waits.append(Wait(start_s, now_s, None, after))
    return tuple(reversed(waits))


def shares_of_time(queries: Sequence[QueryRow]) -> list[tuple[str, str, float]]:
    """Return what queries waited for, as (engine, how, seconds), the longest first. The seconds add up to the
    times of all queries.

    An engine is waited for while it works, and before it begins. What is neither has the engine "".
    """
    seconds: dict[tuple[str, str], float] = {}
    for wait in (wait for row in queries for wait in row.waits):
        if wait.span is not None:
            key = (wait.span.engine, "works")
        elif wait.next is not None:
            key = (wait.next.engine, "has not begun")
        else:
            key = ("", "no step runs any more")
        seconds[key] = seconds.get(key, 0.0) + wait.end_s - wait.start_s
    return [(*key, value) for key, value in sorted(seconds.items(), key=lambda item: -item[1])]


def percents(values: Sequence[float]) -> list[float]:
    """Return the shares of values in percent, rounded to a tenth so that they add up to 100."""
    whole = math.fsum(values)
    if not whole:
        return [0.0 for _ in values]
    exact = [1000 * value / whole for value in values]
    tenths = [int(one) for one in exact]
    by_rest = sorted(range(len(exact)), key=lambda at: tenths[at] - exact[at])
    for at in by_rest[: 1000 - sum(tenths)]:
        tenths[at] += 1
    return [one / 10 for one in tenths]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile of values; `share` is between 0 and 1, as 0.5 for the median."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
