"""Totals of a recording."""

from __future__ import annotations

import pytest
from support.recorded_runs import driver

from stretto.model.tasks import Usage
from stretto.trace.recorder import QuerySpan, Recorder, Span, SpanPart
from stretto.trace.summary import critical_chain, percents, shares_of_time, summarise


def _span(engine: str, start_s: float, end_s: float | None, *, marks_s: tuple[float, ...] = ()) -> Span:
    return Span(
        engine, 0, (SpanPart("q", f"{engine}@{start_s:g}", "op", 2),), start_s, end_s, marks_s=[*marks_s]
    )


def _recorder(*spans: Span, end_s: float | None = 10.0) -> Recorder:
    recorder = Recorder()
    recorder.spans = list(spans)
    recorder.queries["q"] = QuerySpan("q", "g", 0.0, end_s, "done")
    return recorder


def test_an_instance_is_busy_once_however_much_runs_on_it() -> None:
    first, second = _span("llm", 0, 4), _span("llm", 2, 5)
    first.usage, second.usage = Usage(10, 4, 3), Usage(5, 0, 2)
    summary = summarise(_recorder(first, second))
    (engine,) = summary.engines
    assert (engine.busy_s, engine.share, engine.num_batches, engine.num_items) == (5.0, 0.5, 2, 4)
    assert engine.usage == Usage(15, 4, 5)
    assert engine.items_per_batch == 2.0
    (query,) = summary.queries
    assert query.by_engine_s == {"llm": 7.0}
    assert query.overlap == pytest.approx(0.7)


def test_what_never_started_took_no_time() -> None:
    waiting = _span("llm", 1, 9)
    waiting.started = False
    (engine,) = summarise(_recorder(waiting)).engines
    assert (engine.busy_s, engine.num_batches) == (0.0, 0)


def test_what_still_runs_counts_up_to_the_last_event() -> None:
    summary = summarise(_recorder(_span("a", 0, None), _span("b", 3, 8), end_s=None))
    assert summary.wall_s == 8.0
    assert summary.engines[0].busy_s == 8.0
    assert summary.queries[0].wall_s == 8.0


def test_the_chain_goes_back_from_the_end_through_what_ended_last() -> None:
    chain = critical_chain(
        0.0, 10.0, [_span("a", 0, 3), _span("b", 1, 6), _span("c", 3, 5), _span("d", 6.5, 10)]
    )
    found = [(wait.start_s, wait.end_s, wait.span and wait.span.engine) for wait in chain]
    assert found == [(0.0, 1.0, None), (1, 6, "b"), (6, 6.5, None), (6.5, 10, "d")]
    assert [wait.next and wait.next.engine for wait in chain] == ["b", None, "d", None]


def test_what_queries_waited_for_adds_up_to_their_time() -> None:
    recorder = _recorder(_span("embed", 1, 3), _span("llm", 6, 9), end_s=10.0)
    (row,) = summarise(recorder).queries
    assert shares_of_time([row]) == [
        ("llm", "has not begun", 3.0),
        ("llm", "works", 3.0),
        ("embed", "works", 2.0),
        ("embed", "has not begun", 1.0),
        ("", "no step runs any more", 1.0),
    ]
    run = driver(5)
    run.run()
    rows = summarise(run.recorder).queries
    shares = shares_of_time(rows)
    assert sum(seconds for _, _, seconds in shares) == pytest.approx(sum(row.wall_s for row in rows))
    assert sum(percents([seconds for _, _, seconds in shares])) == pytest.approx(100.0)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [1e-9, 5.0], [2.0] * 7, [3.0]])
def test_shares_add_up_to_a_hundred(values: list[float]) -> None:
    assert round(sum(percents(values)), 6) == 100.0


def test_no_time_has_no_shares() -> None:
    assert (percents([]), percents([0.0])) == ([], [0.0])


def test_the_chain_enters_a_running_request_at_the_piece_that_was_waited_for() -> None:
    decode = _span("llm", 0, 9, marks_s=(4.0, 8.0))
    chain = critical_chain(0.0, 10.0, [decode, _span("embed", 4, 10)])
    assert [(wait.start_s, wait.end_s) for wait in chain] == [(0, 4), (4, 10)]


def test_chains_fill_the_whole_time_of_every_query() -> None:
    run = driver(5)
    run.run()
    for row in summarise(run.recorder).queries:
        assert row.outcome == "done"
        assert sum(wait.end_s - wait.start_s for wait in row.waits) == pytest.approx(row.wall_s)
        assert all(a.end_s == b.start_s for a, b in zip(row.waits, row.waits[1:], strict=False))
        assert all(
            wait.span is None or row.query in {part.query for part in wait.span.parts} for wait in row.waits
        )


def test_nothing_recorded_is_nothing() -> None:
    summary = summarise(Recorder())
    assert (summary.wall_s, summary.engines, summary.queries) == (0.0, (), ())
