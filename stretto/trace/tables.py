"""Builds the tables of the HTML page that shows a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import median, quantiles

from stretto.trace.recorder import QuerySpan
from stretto.trace.summary import EngineRow, QueryRow, Summary, Wait, percents, shares_of_time


def tiles(summary: Summary) -> str:
    """Return a row of tiles with the totals of a recorded run (queries, times, tokens), as HTML."""
    rows = summary.queries
    walls_s = [row.wall_s for row in rows]
    num_done = sum(row.outcome == "done" for row in rows)
    found = [
        ("queries", f"{len(rows)} <small>{num_done} done</small>"),
        ("wall time", _seconds(summary.wall_s)),
    ]
    if walls_s:
        shown = _seconds(median(walls_s))
        if len(walls_s) > 1:
            p99_s = quantiles(walls_s, n=100, method="inclusive")[98]
            shown += f" <small>median; p99 {_seconds(p99_s)}</small>"
        found.append(("query time", shown))
        overlap = sum(row.overlap for row in rows) / len(rows)
        found.append(("steps at once, per query", f"{overlap:.2f}"))
    found.append(("batches and requests", f"{sum(row.num_batches for row in summary.engines):,}"))
    usages = [row.usage for row in summary.engines if row.usage is not None]
    if usages:
        prompt = sum(u.num_prompt_tokens for u in usages)
        cached = sum(u.num_cached_tokens for u in usages) / prompt if prompt else 0.0
        output = sum(u.num_output_tokens for u in usages)
        found.append(("prompt tokens", f"{prompt:,} <small>{cached:.0%} cached</small>"))
        found.append(("output tokens", f"{output:,}"))
    return '<dl class="tiles">' + "".join(f"<div><dt>{n}</dt><dd>{v}</dd></div>" for n, v in found) + "</dl>"


def engine_table(summary: Summary, colours: Mapping[str, str]) -> str:
    """Return a table of how busy each engine was in a recorded run, one row each, as HTML; `colours` are CSS
    classes.
    """
    heads = ["engine", "#instances", "#batches", "#items", "#mean batch", "#busy", "#utilisation", ""]
    return _table(heads, (_engine_cells(row, colours[row.engine]) for row in summary.engines))


def _engine_cells(row: EngineRow, colour: str) -> str:
    cells = [
        str(row.num_instances),
        f"{row.num_batches:,}",
        f"{row.num_items:,}",
        f"{row.items_per_batch:.1f}",
        _seconds(row.busy_s),
        f"{row.share:.0%}",
    ]
    bar = f'<i class="{colour}" style="width:{min(1.0, row.share):.2%}"></i>'
    return (
        f'<tr><td><span class="dot {colour}"></span>{escape(row.engine)}</td>'
        + "".join(f'<td class="number">{cell}</td>' for cell in cells)
        + f'<td class="wide"><div class="bar">{bar}</div></td></tr>'
    )


def query_table(summary: Summary, colours: Mapping[str, str]) -> str:
    """Return a table of the queries of a recorded run and what each waited for, one row each, as HTML.

    `colours` are CSS classes by engine. The page's script finds a query's number in `data-query`.
    """
    heads = ["query", "graph", "outcome", "#start", "#time", "#steps at once", "waited for"]
    longest_s = max((row.wall_s for row in summary.queries), default=0.0)
    zero_s = min((row.start_s for row in summary.queries), default=0.0)
    return _table(
        heads,
        (_query_cells(i, row, colours, longest_s, zero_s) for i, row in enumerate(summary.queries)),
    )


def pass_table(queries: Iterable[QuerySpan]) -> str:
    """Return a table of the passes that were weighed for queries, and why each was kept or
    left out, as HTML; empty if none was.
    """
    counts = Counter((query.graph, verdict) for query in queries for verdict in query.verdicts)
    rows = (
        f"<tr><td>{escape(graph)}</td><td>{escape(verdict.name)}</td><td>{escape(verdict.reason)}</td>"
        f'<td class="number">{count:,}</td></tr>'
        for (graph, verdict), count in counts.items()
    )
    return _table(["graph", "pass", "predicted", "#queries"], rows) if counts else ""


def _query_cells(
    number: int, row: QueryRow, colours: Mapping[str, str], longest_s: float, zero_s: float
) -> str:
    """Build the row of a query. The bar's length is the query's time, its parts are the spans it waited
    for."""
    parts = []
    for wait in row.waits:
        colour = "" if wait.span is None else colours[wait.span.engine]
        name = _name(wait, row.query)
        width = (wait.end_s - wait.start_s) / longest_s if longest_s else 0.0
        hover = escape(f"{name}: {_seconds(wait.end_s - wait.start_s)}")
        parts.append(f'<i class="{colour}" style="width:{width:.3%}" title="{hover}"></i>')
    bad = "" if row.outcome in ("done", "running") else " bad"
    outcome = escape(row.outcome)
    return (
        f'<tr data-query="{number}"><td>{escape(row.query)}</td><td>{escape(row.graph)}</td>'
        f'<td class="outcome{bad}" title="{outcome}">{outcome}</td>'
        f'<td class="number">{_seconds(row.start_s - zero_s)}</td>'
        f'<td class="number">{_seconds(row.wall_s)}</td><td class="number">{row.overlap:.2f}</td>'
        f'<td class="wide"><div class="bar">{"".join(parts)}</div></td></tr>'
    )


def _name(wait: Wait, query: str) -> str:
    """Return what a query waited for, in words."""
    span = wait.span or wait.next
    if span is None:
        return "waited for the reply: no step ran any more"
    steps = ", ".join(dict.fromkeys(part.step for part in span.parts if part.query == query))
    return f"{steps} @{span.engine}" if wait.span else f"waited for @{span.engine} to begin {steps}"


def share_table(summary: Summary, colours: Mapping[str, str]) -> str:
    """Return a table of what all queries waited for, whose shares add up to 100 %, as HTML. Waits for an
    engine to begin are grey, as in the bars.
    """
    found = shares_of_time(summary.queries)
    rows = []
    for (engine, how, seconds), percent in zip(found, percents([one[2] for one in found]), strict=True):
        colour = colours[engine] if how == "works" else ""
        bar = f'<i class="{colour}" style="width:{percent:.1f}%"></i>'
        name = f"{engine} {how}" if engine else how
        rows.append(
            f'<tr><td><span class="dot {colour}"></span>{escape(name)}</td>'
            f'<td class="number">{_seconds(seconds)}</td><td class="number">{percent:.1f} %</td>'
            f'<td class="wide"><div class="bar">{bar}</div></td></tr>'
        )
    return _table(["while", "#time", "#share", ""], rows)


def _table(heads: Sequence[str], rows: Iterable[str]) -> str:
    """Build a table. A head that starts with # marks a column of numbers."""
    shown = "".join(f"<th{' class=number' * h.startswith('#')}>{h.removeprefix('#')}</th>" for h in heads)
    return f"<table><thead><tr>{shown}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds else "0"
