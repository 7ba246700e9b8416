"""Arranges the bars of a time line (batches and LLM requests) in as few rows as possible without overlaps."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stretto.trace.recorder import Recorder, Span

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the time line: bars (batches, LLM requests) of one instance that do not overlap in time."""

    engine: str
    instance: int
    number: int
    spans: tuple[Span, ...]


def lanes(recorder: Recorder) -> list[Lane]:
    """Arrange all recorded batches and LLM requests in rows of the time line, as few rows as possible.

    Rows are sorted by engine, in the order in which engines first ran something, and then by instance.
    """
    groups: dict[str, dict[int, list[Span]]] = {}
    for span in recorder.spans:
        groups.setdefault(span.engine, {}).setdefault(span.instance, []).append(span)
    until_s = horizon_s(recorder)
    found = []
    for engine, instances in groups.items():
        for instance in sorted(instances):
            spans = instances[instance]
            numbers = pack_rows([running_s(span, until_s) for span in spans])
            for number in range(max(numbers) + 1):
                chosen = [span for span, own in zip(spans, numbers, strict=True) if own == number]
                chosen.sort(key=lambda span: span.start_s)
                found.append(Lane(engine, instance, number, tuple(chosen)))
    return found


def horizon_s(recorder: Recorder) -> float:
    """Return the latest time in a recording, in seconds; batches and requests that still run are drawn up to
    that time.
    """
    times_s = [0.0]
    for span in recorder.spans:
        times_s += [span.start_s, span.end_s or span.start_s, *span.marks_s[-1:]]
    for query in recorder.queries.values():
        times_s += [query.start_s, query.end_s or query.start_s]
    return max(times_s)


def origin_s(recorder: Recorder) -> float:
    """Return the earliest time in a recording, in seconds: the zero of its time line."""
    starts_s = [query.start_s for query in recorder.queries.values()]
    starts_s += [span.start_s if span.queued_s is None else span.queued_s for span in recorder.spans]
    return min(starts_s, default=0.0)


def running_s(span: Span, until_s: float) -> tuple[float, float]:
    """Return when a batch or LLM request started and ended, in seconds.

    If it still runs, it ends at `until_s`. The times are equal for a request that never left the queue.
    """
    end_s = until_s if span.end_s is None else span.end_s
    return (span.start_s, end_s) if span.started else (end_s, end_s)


def pack_rows(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """Distribute time intervals over rows of a time line so that none overlap in a row; return each
    interval's row.

    An interval gets the lowest row that is free when it begins. O(n log n).
    """
    numbers = [0] * len(intervals)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for i in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        start, end = intervals[i]
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        numbers[i] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, numbers[i]))
    return numbers


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the total length of time that intervals cover together; overlaps count once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
