"""Draws a carried-out plan as a page of HTML: a row for each device, a bar for each replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from stretto.planner.execution import Execution, ReplicaSpan
from stretto.planner.machine import PlanMachine

_WIDTH, _ROW, _LEFT = 1000, 28, 60
_STYLE = (
    "body{font:13px system-ui,sans-serif;margin:24px;max-width:1100px;color:#1f2328;background:#fff}"
    "text{font-size:11px;fill:#1f2328}.loading{fill-opacity:.3}.waiting{fill:#fff;fill-opacity:.75}"
    ".scroll{overflow-x:auto}.key{display:inline-block;padding:2px 8px;margin:0 8px 4px 0}"
    ".chart{display:flex}.chart svg:first-child{flex:none}td,th{padding:2px 14px 2px 0;text-align:left}"
)
_LEGEND = (
    "A bar is pale while its model loads, in full colour while it computes, and nearly white while it waits "
    "for input."
)


def gantt_page(
    title: str,
    done: Execution,
    models: Sequence[str],
    machine: PlanMachine,
    rows: Sequence[Sequence[str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return the page; its chart is as wide as the window, and bars have tooltips.

    Args:
        rows: rows of a table below the chart, the headings first.
        notes: paragraphs below it.
    """
    colours = {model: f"hsl({at * 360 // len(models)} 55% 62%)" for at, model in enumerate(models)}
    keys = "".join(
        f'<span class="key" style="background:{colour}">{escape(model)}</span>'
        for model, colour in colours.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{''.join(map(_paragraph, notes[:1]))}"
        f"<p>{keys}</p>{_chart(done, colours, machine)}{_paragraph(_LEGEND)}"
        f"{_table(rows)}{''.join(map(_paragraph, notes[1:]))}</html>\n"
    )


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    cells = (
        "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row)
        for row, kind in zip(rows, ["th"] + ["td"] * len(rows), strict=False)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in cells)
    return f'<div class="scroll"><table>{lines}</table></div>' if rows else ""


def _chart(done: Execution, colours: dict[str, str], machine: PlanMachine) -> str:
    """Return the chart: names of devices, and bars that stretch with the window."""
    devices = range(machine.num_devices)
    height = _ROW * machine.num_devices
    names = "".join(f'<text x="0" y="{_ROW * at + 18}">{machine.device} {at}</text>' for at in devices)
    scale = _WIDTH / max(1e-9, done.makespan_s)
    bars = "".join(
        bar
        for span in done.spans
        for device in span.replica.devices
        for bar in _bar(span, device, scale, colours[span.replica.model])
    )
    return (
        f'<div class="scroll chart"><svg width="{_LEFT}" height="{height + 20}">{names}</svg>'
        f'<svg width="100%" height="{height + 20}" role="img"><text x="0" y="{height + 16}">0</text>'
        f'<text x="100%" y="{height + 16}" text-anchor="end">{done.makespan_s:.0f} s</text>'
        f'<svg height="{height}" viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none">{bars}</svg>'
        "</svg></div>"
    )


def _bar(span: ReplicaSpan, device: int, scale: float, colour: str) -> Iterator[str]:
    tip = (
        f"{escape(span.replica.model)}: starts at {span.start_s:.1f} s, loaded at {span.ready_s:.1f} s, "
        f"ends at {span.end_s:.1f} s"
    )
    waits = ((begin_s, end_s, ' class="waiting"') for begin_s, end_s in span.waits_s)
    parts = ((span.start_s, span.ready_s, ' class="loading"'), (span.ready_s, span.end_s, ""), *waits)
    for begin_s, end_s, kind in parts:
        yield (
            f'<rect{kind} x="{begin_s * scale:.1f}" y="{_ROW * device + 2}" '
            f'width="{(end_s - begin_s) * scale:.1f}" height="{_ROW - 4}" fill="{colour}">'
            f"<title>{tip}</title></rect>"
        )
