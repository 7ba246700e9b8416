"""Draws the answer as a page of HTML: load against latency by objective, with the knee of each fleet."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from stretto.sizing.answer import Answer
from stretto.sizing.objectives import Objective, shown_s
from stretto.sizing.report import UNITS, change_text, interval, notes, sentence, tried
from stretto.sizing.servers import Server
from stretto.sizing.study import Study, shown_amount
from stretto.sizing.trial import TriedFleet

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 640, 300, 70, 260, 10
_TIMES_LIMIT = 3.0
"""Height of a picture, in limits of its objective. What is more is drawn at the top."""
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:24px;max-width:900px;color:#1f2328;background:#fff}"
    f"text{{font-size:11px;fill:#1f2328}}td{{padding:2px 12px 2px 0}}svg{{width:100%;max-width:{_WIDTH}px}}"
    ".limit{stroke:#cf222e;stroke-dasharray:5 4}.knee{stroke-dasharray:2 3}.axis{stroke:#8c959f}"
)
_Points: TypeAlias = Sequence[tuple[float, Sequence[float]]]
"""Loads, each with the values of all draws at it."""


def answer_page(study: Study, answer: Answer, servers: Sequence[Server]) -> str:
    """Return the page. It shows the runs that were made, and makes no others. While no capacity is known, it
    shows the runs of all fleets.
    """
    served = [*answer.alone, *([answer.best] if answer.best is not None else [])]
    known = {one.fleet: one.capacity for one in served}
    fleets = list(known or dict.fromkeys(fleet for fleet, _, _ in study.outcomes))
    hues = {fleet.name: f"hsl({at * 360 // len(fleets)} 60% 42%)" for at, fleet in enumerate(fleets)}
    body = [f"<h1>{escape(sentence(answer))}</h1>"]
    shown = [f"{fleet.name}: {interval(capacity)}" for fleet, capacity in known.items()] or tried(study)
    for fleet, line in zip(fleets, shown, strict=True):
        body.append(f'<p style="color:{hues[fleet.name]}">{escape(line)}</p>')
    if not fleets:
        body.append("<p>no run has ended yet</p>")
    for place, objective in enumerate(answer.objectives if fleets else ()):
        curves = {fleet.name: _points(study, fleet, place) for fleet in fleets}
        knees = {fleet.name: capacity.middle for fleet, capacity in known.items()}
        drawn = "".join(_drawn(study, objective, curves, knees, hues))
        svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{drawn}</svg>'
        body.append(f"<h2>{escape(objective.label)}</h2>{svg}")
    if answer.what_ifs:
        rows = [
            f"<tr><td>{escape(one.name)}</td><td>{escape(change_text(one))}</td></tr>"
            for one in answer.what_ifs
        ]
        body.append(f"<h2>Changes</h2><table>{''.join(rows)}</table>")
    body += [f"<p>{escape(line)}</p>" for line in notes(study, answer, servers)]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(study.traffic.source.name)}</title><style>{_STYLE}</style>"
        f"{''.join(body)}</html>\n"
    )


def _points(study: Study, drawn: TriedFleet, place: int) -> _Points:
    """Return the measured values of one objective on a fleet."""
    found: dict[float, list[float]] = defaultdict(list)
    for (fleet, load, _), outcome in study.outcomes.items():
        value_s = outcome.values_s[place]
        if fleet == drawn and value_s is not None:
            found[load.amount].append(value_s)
    return sorted(found.items())


@dataclass(frozen=True, slots=True)
class _Scales:
    """Where loads and seconds lie in a picture."""

    most: float
    top_s: float

    def x(self, load: float) -> str:
        return f"{_LEFT + load / self.most * (_WIDTH - _LEFT - _EDGE):.1f}"

    def y(self, seconds: float) -> str:
        return f"{_BOTTOM - min(1.0, seconds / self.top_s) * (_BOTTOM - _EDGE):.1f}"


def _drawn(
    study: Study,
    objective: Objective,
    curves: Mapping[str, _Points],
    knees: Mapping[str, float],
    hues: Mapping[str, str],
) -> Iterator[str]:
    """Yield the parts of a picture: axes and limit, then for each fleet its curve, its runs and its knee."""
    most = max((load for points in curves.values() for load, _ in points), default=1.0)
    scales = _Scales(most, _TIMES_LIMIT * objective.limit_s)
    yield from _axes(objective, scales, UNITS[study.unit])
    for name, points in curves.items():
        hue = hues[name]
        path = " ".join(f"{scales.x(load)},{scales.y(statistics.median(values))}" for load, values in points)
        yield f'<polyline points="{path}" fill="none" stroke="{hue}" stroke-width="1.5"/>'
        for load, value_s in ((load, value_s) for load, values in points for value_s in values):
            tip = escape(f"{name}, {shown_amount(load)} {UNITS[study.unit]}: {shown_s(value_s)}")
            at = f'cx="{scales.x(load)}" cy="{scales.y(value_s)}"'
            yield f'<circle {at} r="2.5" fill="{hue}"><title>{tip}</title></circle>'
        if name in knees:
            knee = scales.x(knees[name])
            yield f'<line class="knee" stroke="{hue}" x1="{knee}" x2="{knee}" y1="{_EDGE}" y2="{_BOTTOM}"/>'


def _axes(objective: Objective, scales: _Scales, unit: str) -> Iterator[str]:
    right, limit = scales.x(scales.most), scales.y(objective.limit_s)
    yield f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="{_EDGE}" y2="{_BOTTOM}"/>'
    yield f'<line class="limit" x1="{_LEFT}" x2="{right}" y1="{limit}" y2="{limit}"/>'
    for seconds, more in ((objective.limit_s, ""), (scales.top_s, " +")):
        yield f'<text x="4" y="{scales.y(seconds)}" dy="4">{shown_s(seconds)}{more}</text>'
    for share, anchor in ((0.0, "middle"), (0.5, "middle"), (1.0, "end")):
        load = share * scales.most
        where = f'x="{scales.x(load)}" y="{_BOTTOM + 16}" text-anchor="{anchor}"'
        yield f"<text {where}>{shown_amount(load)}</text>"
    yield f'<text x="{right}" y="{_BOTTOM + 32}" text-anchor="end">{unit}</text>'
