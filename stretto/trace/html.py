"""Writes self-contained HTML pages: the time line of a recording, and the effect of each pass on a graph.

A page loads nothing from elsewhere. Tables and drawings are plain HTML; only the time line needs the script.
Names and outcomes come from users and servers, so everything is escaped, and the script writes text, never
markup.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph
from stretto.trace.drawing import colours_of, draw_graph
from stretto.trace.lanes import horizon_s, lanes, origin_s, pack_rows, running_s
from stretto.trace.recorder import Recorder, Span
from stretto.trace.summary import Summary, summarise
from stretto.trace.tables import engine_table, pass_table, query_table, share_table, tiles

_HELP = (
    "Wheel: zoom. Drag: move. Double click or <kbd>0</kbd>: all. Click a bar or a query: only that query, "
    "with what it waited for underlined. Thin lines: waiting in an instance's queue. Ticks: pieces."
)


def write_trace(
    path: str | os.PathLike[str], recorder: Recorder, graphs: Iterable[Graph | ExecutionGraph] = ()
) -> None:
    """Write a recording of what ran when to an HTML file: its time line, its tables, and a drawing of each
    different graph.
    """
    Path(path).write_text(trace_page(recorder, graphs), encoding="utf-8")


def trace_page(recorder: Recorder, graphs: Iterable[Graph | ExecutionGraph] = ()) -> str:
    """Return an HTML page about a recording of what ran when: its time line, its tables, and a drawing of
    each different graph.
    """
    summary = summarise(recorder)
    drawn = {g.graph if isinstance(g, ExecutionGraph) else g: g for g in graphs}
    engines = {row.engine for row in summary.engines} | {p.engine for g in drawn for p in g if p.engine}
    colours = colours_of(engines)
    title = "Trace of " + (", ".join(dict.fromkeys(row.graph for row in summary.queries)) or "nothing")
    data = json.dumps(_data(recorder, summary, colours), separators=(",", ":"), allow_nan=False)
    body = [
        tiles(summary),
        _section("Time line", '<div id="timeline"><canvas></canvas></div>', about=_HELP),
        _section("Where the time went, by engine", _scroll(engine_table(summary, colours))),
        _section(
            "What queries waited for",
            _scroll(share_table(summary, colours)),
            about="From submission to reply, one thing after the other: the shares add up to 100 %. "
            "Grey: an engine had not begun, for it was busy, not ready, or held the request back.",
        ),
        _section(
            "Queries",
            _scroll(query_table(summary, colours), "tall"),
            about="The bars show what a query waited for, one after the other, from submission to reply. "
            "Point at a part to see its step and time.",
        ),
        *(_section("Passes", _scroll(table)) for table in [pass_table(recorder.queries.values())] if table),
        *(_section(graph.name, _scroll(draw_graph(given, engines))) for graph, given in drawn.items()),
        '<div id="tip" hidden></div>',
        f'<script type="application/json" id="data">{data.replace("<", chr(92) + "u003c")}</script>',
        f"<script>{_asset('timeline.js')}</script>",
    ]
    return _page(title, body)


def graph_page(title: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """Return an HTML page of sections (heading, text, svg), to show a graph after each optimisation pass.

    The text is shown line by line, unchanged; the svg is markup from `draw_graph`, or empty.
    """
    return _page(
        title,
        [_section(heading, _prose(text) + (_scroll(svg) if svg else "")) for heading, text, svg in sections],
    )


def _page(title: str, body: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _section(heading: str, content: str, *, about: str = "") -> str:
    """Build a section of a page; `content` and `about` are markup."""
    about = f"<p>{about}</p>" if about else ""
    return f"<section><header><h2>{escape(heading)}</h2>{about}</header>{content}</section>"


def _prose(text: str) -> str:
    if not text:
        return ""
    return f"<pre>{escape(text)}</pre>" if "\n" in text.strip() else f"<p>{escape(text)}</p>"


def _scroll(content: str, how: str = "") -> str:
    return f'<div class="scroll {how}">{content}</div>'


def _asset(name: str) -> str:
    return files("stretto.trace").joinpath(name).read_text(encoding="utf-8")


def _data(recorder: Recorder, summary: Summary, colours: Mapping[str, str]) -> dict[str, Any]:
    """Data that the script draws; times are seconds from the first event."""
    zero_s, until_s = origin_s(recorder), horizon_s(recorder)
    numbers = {query: i for i, query in enumerate(recorder.queries)}
    span_ids = {id(span): i for i, span in enumerate(recorder.spans)}
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    for lane in lanes(recorder):
        label = {"label": f"{lane.engine}/{lane.instance}", "colour": colours[lane.engine], "lanes": []}
        group = groups.setdefault((lane.engine, lane.instance), label)
        group["lanes"].append([span_ids[id(span)] for span in lane.spans])
    rows = summary.queries
    query_lanes: list[list[int]] = []
    for i, number in enumerate(pack_rows([(row.start_s, row.start_s + row.wall_s) for row in rows])):
        query_lanes += [[] for _ in range(number + 1 - len(query_lanes))]
        query_lanes[number].append(i)
    return {
        "wall_s": summary.wall_s,
        "queries": [
            {
                "name": row.query,
                "graph": row.graph,
                "start": _round(row.start_s - zero_s),
                "end": _round(row.start_s + row.wall_s - zero_s),
                "outcome": row.outcome,
            }
            for row in rows
        ],
        "query_lanes": [sorted(lane, key=lambda i: rows[i].start_s) for lane in query_lanes],
        "groups": list(groups.values()),
        "spans": [_span(span, zero_s, until_s, numbers) for span in recorder.spans],
        "chains": [
            [
                [
                    _round(wait.start_s - zero_s),
                    _round(wait.end_s - zero_s),
                    -1 if wait.span is None else span_ids[id(wait.span)],
                ]
                for wait in row.waits
            ]
            for row in rows
        ],
    }


def _span(span: Span, zero_s: float, until_s: float, numbers: Mapping[str, int]) -> dict[str, Any]:
    start_s, end_s = running_s(span, until_s)
    return {
        "start": _round(start_s - zero_s),
        "end": _round(end_s - zero_s),
        "queued": None if span.queued_s is None else _round(span.queued_s - zero_s),
        "started": span.started,
        "marks": [_round(mark_s - zero_s) for mark_s in span.marks_s],
        "parts": [[numbers.get(p.query, -1), p.step, p.op, p.num_items] for p in span.parts],
        "outcome": span.outcome if span.finish == "stop" else f"{span.outcome} ({span.finish})",
        "usage": span.usage
        and [span.usage.num_prompt_tokens, span.usage.num_cached_tokens, span.usage.num_output_tokens],
        "reason": span.reason,
        "terms": {name: _round(term) for name, term in span.terms.items() if term},
    }


def _round(seconds: float) -> float:
    return round(seconds, 7)
