"""Draws a report as a picture: horizontal bars, one group for each table that its benchmark names, or the
picture that its benchmark draws itself.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.registry import BENCHMARKS
from benchmarks.report import Report, Value, show
from stretto.model.errors import ConfigError


def plot(report: Report, path: str | Path) -> None:
    """Write a picture of the tables that the benchmark chose (PNG, SVG or PDF, by suffix).

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise ConfigError("a plot needs matplotlib: pip install 'stretto[bench]'") from cause
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    module = BENCHMARKS[report.name].picture
    if module is None:
        _draw_bars(figure, report)
    else:
        import_module(module).draw_into(figure, report)
    figure.savefig(path, dpi=150)


def _draw_bars(figure: Any, report: Report) -> None:
    charts = charts_of(report)
    figure.set_size_inches(8, 1 + 4 * len(charts))
    for place, (table, columns) in enumerate(charts.items(), start=1):
        axes = figure.add_subplot(len(charts), 1, place)
        rows = [row for row in report.table(table).values() if columns[0] in row.values]
        height = 0.8 / len(columns)
        for offset, column in enumerate(columns):
            values = [row.values.get(column) for row in rows]
            lengths = [float(value) if isinstance(value, int | float) else 0.0 for value in values]
            bars = axes.barh([i + offset * height for i in range(len(rows))], lengths, height, label=column)
            axes.bar_label(bars, [show(value) for value in values], padding=3)
        axes.set_yticks(
            [i + 0.4 - height / 2 for i in range(len(rows))],
            [f"{row.name} ({row.origin})" if row.origin == "quoted" else row.name for row in rows],
        )
        axes.invert_yaxis()
        axes.set_title(table, loc="right")  # it begins above the names of the rows, which are long
        axes.set_xlabel(columns[0] if len(columns) == 1 else _unit(table, columns))
        if len(columns) > 1:
            axes.legend()
        if _is_wide([row.values[columns[0]] for row in rows]):
            axes.set_xscale("log")
        axes.margins(x=0.15)


def charts_of(report: Report) -> dict[str, list[str]]:
    """Return the columns to draw by table, of those tables that the report has."""
    charts: dict[str, list[str]] = {}
    for table, column in BENCHMARKS[report.name].charts:
        if any(column in row.values for row in report.table(table).values()):
            charts.setdefault(table, []).append(column)
    return charts


def _unit(table: str, columns: list[str]) -> str:
    """Label of the axis for several columns in one chart."""
    if "speed-up" in table:
        return "times as fast"
    for end, unit in (("share", "share"), ("_s", "seconds")):
        if all(column.endswith(end) for column in columns):
            return unit
    return ""  # the title says it


def _is_wide(values: list[Value]) -> bool:
    """Whether the values need a logarithmic axis."""
    numbers = [value for value in values if isinstance(value, int | float) and value > 0]
    return len(numbers) > 1 and max(numbers) > 100 * min(numbers)
