"""A recorded run of an app as traffic: each query is a job, and the calls of LLMs in it are its requests.

A call waits for the calls of its query that had ended when it began, for as long as it did then: other
engines worked in between. So the graph of the app is kept as far as its calls waited for each other. The
tokens that a call found in a cache are taken to be the same for all calls of its step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stretto.trace.agents.requests import (
    After,
    AgentRequest,
    AgentTrace,
    BlockRuns,
    SizedPrompt,
    checked_trace,
)
from stretto.trace.lines import TraceError
from stretto.trace.recorded_run import RecordedQuery, RecordedSpan
from stretto.trace.run_reading import read_run

_BLOCK_TOKENS = 16
_STEP_IDS = 1 << 32
"""Ids of the blocks of each step, and of those that a call has alone."""
_OWN_IDS = 1 << 52
_MOST_CALLS = 1 << 16


def read_recorded_app(path: Path) -> AgentTrace:
    """Read what `stretto ask --record` wrote.

    Raises:
        TraceError: the file does not fit its format, or no query with a call of an LLM has ended well.
    """
    run = read_run(path)
    llms = {engine.name for engine in run.engines if engine.kind != "batch"}
    numbers: dict[tuple[int, str], int] = {}
    requests = [
        request
        for number, query in enumerate(run.queries)
        if query.error is None
        for request in _requests(
            query, number, [span for span in query.spans if span.engine in llms], numbers
        )
    ]
    if not requests:
        raise TraceError(f"{path}: no query has ended well that has called an LLM")
    return checked_trace(path, requests)


def _requests(
    query: RecordedQuery,
    number: int,
    spans: Sequence[RecordedSpan],
    numbers: dict[tuple[int, str], int],
) -> Iterator[AgentRequest]:
    calls = sorted((span for span in spans if span.num_output), key=lambda span: span.ready_s)
    for place, span in enumerate(calls):
        ended = [(n, other) for n, other in enumerate(calls[:place]) if other.end_s <= span.ready_s]
        latest_s = max((other.ready_s for _, other in ended), default=0.0)
        needed = [(n, other) for n, other in ended if other.end_s > latest_s]
        num_blocks = -(-max(1, span.num_units) // _BLOCK_TOKENS)
        num_common = min(span.num_cached // _BLOCK_TOKENS, num_blocks)
        own_id = _OWN_IDS + (number * _MOST_CALLS + place) * _STEP_IDS
        common_id = numbers.setdefault((query.graph, span.step), len(numbers)) * _STEP_IDS
        blocks = BlockRuns(((common_id, num_common), (own_id, num_blocks - num_common)))
        yield AgentRequest(
            id=f"{query.query}/{place}",
            line=0,
            prompt=SizedPrompt(max(1, span.num_units), blocks, _BLOCK_TOKENS),
            arrival_s=0.0 if needed else query.arrival_s + span.ready_s,
            after=tuple(After(f"{query.query}/{n}", span.ready_s - other.end_s) for n, other in needed),
            output_tokens=span.num_output,
        )
