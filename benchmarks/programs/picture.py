"""The picture of the judge: latency by load, one panel for each mix."""

from __future__ import annotations

from typing import Any

from benchmarks.programs.contestants import ARRIVAL, BEFORE, CLAIRVOYANT, OURS
from benchmarks.programs.tables import SECONDS
from benchmarks.report import Report, Row

_COLUMNS = 4
_LINES = {ARRIVAL: "--", BEFORE: ":", OURS: "-", CLAIRVOYANT: "-."}


def draw_into(figure: Any, report: Report) -> None:
    """Draw the mean latencies of a report, of its first layout, into a figure of matplotlib."""
    panels: dict[str, list[Row]] = {}
    for row in report.table(SECONDS).values():
        if row.name.startswith(str(row.values["mix"])):
            panels.setdefault(str(row.values["mix"]), []).append(row)
    num_rows = -(-len(panels) // _COLUMNS)
    figure.set_size_inches(3 * _COLUMNS, 2.8 * num_rows)
    for place, (mix, rows) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(num_rows, _COLUMNS, place)
        for name, style in _LINES.items():
            points = [(100 * _number(row, "load"), _number(row, name)) for row in rows if name in row.values]
            if points:
                axes.plot(*zip(*points, strict=True), style, marker="o", markersize=3, label=name)
        axes.set_title(mix, loc="left")
        axes.set_xlabel("load, %")
        axes.set_ylabel("mean s")
        axes.set_ylim(bottom=0)
        if place == 1:
            axes.legend()


def _number(row: Row, column: str) -> float:
    value = row.values[column]
    assert isinstance(value, int | float)
    return float(value)
