"""Draws a carried-out plan as a page of HTML: a row for each device, a bar for each replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from stretto.planner.execution import Execution, ReplicaSpan
from stretto.planner.machine import PlanMachine

_WIDTH, _ROW, _LEFT = 1000, 28, 60
_STYLE = (
    "body{font:13px system-ui,sans-serif;margin:24px;color:#1f2328;background:#fff}"
    "text{font-size:11px;fill:#1f2328}.loading{fill-opacity:.3}.waiting{fill:#fff;fill-opacity:.75}.scroll{overflow-x:auto}"
    ".key{display:inline-block;padding:2px 8px;margin:0 8px 4px 0}"
)


def gantt_page(title: str, done: Execution, models: Sequence[str], machine: PlanMachine) -> str:
    """Return the page; a bar is pale while its replica loads, nearly white while it waits for input, and has
    a tooltip.
    """
    scale = _WIDTH / max(1e-9, done.makespan_s)
    colours = {model: f"hsl({at * 360 // len(models)} 55% 62%)" for at, model in enumerate(models)}
    height = _ROW * machine.num_devices + 20
    rows = [
        f'<text x="0" y="{_ROW * at + 18}">{machine.device} {at}</text>' for at in range(machine.num_devices)
    ]
    for span in done.spans:
        for device in span.replica.devices:
            rows += _bar(span, device, scale, colours[span.replica.model])
    rows.append(f'<text x="{_LEFT}" y="{height - 4}">0</text>')
    rows.append(
        f'<text x="{_LEFT + _WIDTH}" y="{height - 4}" text-anchor="end">{done.makespan_s:.0f} s</text>'
    )
    keys = "".join(
        f'<span class="key" style="background:{colour}">{escape(model)}</span>'
        for model, colour in colours.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{keys}</p>"
        f'<div class="scroll"><svg width="{_LEFT + _WIDTH}" height="{height}" role="img">'
        f"{''.join(rows)}</svg></div></html>\n"
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
            f'<rect{kind} x="{_LEFT + begin_s * scale:.1f}" y="{_ROW * device + 2}" '
            f'width="{(end_s - begin_s) * scale:.1f}" height="{_ROW - 4}" fill="{colour}">'
            f"<title>{tip}</title></rect>"
        )
