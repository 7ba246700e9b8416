"""Exports a recording in Chrome's trace event format, for Perfetto and chrome://tracing.

A process is an engine, a thread is a lane of one of its instances, and a complete event is a batch or an LLM
request, whose pieces are instants. Process 0 has the queries as async events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stretto.trace.lanes import horizon_s, lanes, origin_s, running_s
from stretto.trace.recorder import Recorder, Span

_QUERIES_PID = 0
_US_PER_S = 1e6


def chrome_trace(recorder: Recorder) -> dict[str, Any]:
    """Convert a recording of what ran when to Chrome's trace event format, as a value for `json.dump`.

    Times are microseconds from the first event.
    """
    return {"traceEvents": list(_events(recorder)), "displayTimeUnit": "ms"}


def span_title(span: Span) -> str:
    """Return the title of a bar of the time line (a batch or LLM request): the steps that ran in it, and the
    number of items if not 1.

    Examples are `embed`, or `embed, embed.1 ×128` for a batch of 128 items.
    """
    steps = list(dict.fromkeys(part.step for part in span.parts))
    shown = ", ".join(steps) if len(steps) <= 3 else f"{steps[0]}, {steps[1]} and {len(steps) - 2} more"
    num_items = sum(part.num_items for part in span.parts)
    return shown if num_items == 1 else f"{shown} ×{num_items}"


def _events(recorder: Recorder) -> Iterator[dict[str, Any]]:
    zero_s, until_s = origin_s(recorder), horizon_s(recorder)

    def us(time_s: float) -> float:
        return round((time_s - zero_s) * _US_PER_S, 3)

    yield _name("process_name", _QUERIES_PID, 0, "queries")
    for number, query in enumerate(recorder.queries.values()):
        end_s = until_s if query.end_s is None else query.end_s
        about = {"ph": "b", "cat": "query", "id": number, "pid": _QUERIES_PID, "tid": 0, "name": query.query}
        yield {**about, "ts": us(query.start_s), "args": {"graph": query.graph, "outcome": query.outcome}}
        yield {**about, "ph": "e", "ts": us(end_s)}
    pids: dict[str, int] = {}
    for tid, lane in enumerate(lanes(recorder), start=1):
        if lane.engine not in pids:
            pids[lane.engine] = len(pids) + 1
            yield _name("process_name", pids[lane.engine], 0, lane.engine)
        pid = pids[lane.engine]
        yield _name("thread_name", pid, tid, f"{lane.engine}/{lane.instance} lane {lane.number}")
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": pid,
            "tid": tid,
            "ts": 0,
            "args": {"sort_index": tid},
        }
        for span in lane.spans:
            start_s, end_s = running_s(span, until_s)
            yield {
                "ph": "X",
                "name": span_title(span),
                "cat": ",".join(dict.fromkeys(part.op for part in span.parts)),
                "pid": pid,
                "tid": tid,
                "ts": us(start_s),
                "dur": round(us(end_s) - us(start_s), 3),
                "args": _details(span),
            }
            for mark_s in span.marks_s:
                yield {"ph": "i", "s": "t", "name": "piece", "pid": pid, "tid": tid, "ts": us(mark_s)}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _details(span: Span) -> dict[str, Any]:
    details: dict[str, Any] = {
        "queries": list(dict.fromkeys(part.query for part in span.parts)),
        "steps": [f"{part.step} ({part.op}) ×{part.num_items}" for part in span.parts],
        "outcome": span.outcome,
    }
    if span.queued_s is not None:
        details["queued_ms"] = round((running_s(span, span.start_s)[0] - span.queued_s) * 1e3, 3)
    if span.held_s:
        details["held_for_room_ms"] = round(span.held_s * 1e3, 3)
    if span.usage is not None:
        details |= {
            "prompt_tokens": span.usage.num_prompt_tokens,
            "cached_tokens": span.usage.num_cached_tokens,
            "output_tokens": span.usage.num_output_tokens,
            "finish_reason": span.finish,
        }
    if span.reason:
        terms = {name: round(term, 6) for name, term in span.terms.items()}
        details |= {
            "cached_tokens_expected": span.held_tokens,
            "placed_because": span.reason,
            "placement_terms": terms,
        }
    return details
