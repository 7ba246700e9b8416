"""Draws a graph as a self-contained SVG: for `explain --html`, for traces, for a README.

Columns run left to right by the longest path from an input; boxes are coloured by engine, edges styled by
kind. For a prefill with a hint, only the segments after the hint are drawn and named, as in Teola, Figure 6;
this keeps the drawing as sparse as the dependencies are. Hovering shows the whole primitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import pairwise

from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import HINT, WHEN, Arg, Constant, Graph, Primitive, PromptParts, Slot
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops
from stretto.graph.text import print_graph
from stretto.graph.verify import verify
from stretto.trace.layout import Box, Edge, Layout, Point, lay_out

_MARGIN = 18.0
_LEGEND_HEIGHT = 40.0
_STUB = 22.0
_MAX_CHARS = 26
_NUM_COLOURS = 8

_STYLE = files("stretto.trace").joinpath("graph.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Line:
    """A drawn edge: CSS classes, and a label at its head."""

    edge: Edge
    kind: str
    streams: bool = False
    label: str = ""


def colours_of(engines: Iterable[str]) -> dict[str, str]:
    """Return the CSS class for the colour of each engine in drawings, by name of the engine."""
    return {engine: f"c{i % _NUM_COLOURS}" for i, engine in enumerate(sorted(set(engines)))}


def draw_graph(graph: Graph | ExecutionGraph, engines: Iterable[str] = ()) -> str:
    """Return a drawing of an app's graph (steps and connections) as SVG text.

    Args:
        engines: names of engines in other drawings, so that an engine has the same colour in all of them.

    A graph with ops that are not Stretto's must be given as an execution graph, which knows its ops.
    """
    ops = OPS
    if isinstance(graph, ExecutionGraph):
        ops = graph.ops
        graph = graph.graph
    own = {primitive.engine for primitive in graph if primitive.engine}
    colours = {engine: c for engine, c in colours_of({*own, *engines}).items() if engine in own}
    texts = {primitive.name: _texts(graph, primitive) for primitive in graph}
    pills = {f"%{name}": name for name, _ in graph.inputs} | {f"return {n}": n for n, _ in graph.outputs}
    sizes = {pill: (_width([shown]) - 4, 24.0) for pill, shown in pills.items() if pill.startswith("%")}
    sizes |= {name: (_width(lines), 18.0 + 14.0 * len(lines)) for name, lines in texts.items()}
    sizes |= {pill: (_width([pill]) - 4, 24.0) for pill in pills if not pill.startswith("%")}
    lines = _lines(graph, ops)
    layout = lay_out(sizes, [line.edge for line in lines])
    hover = dict(zip(texts, print_graph(graph, ops).splitlines()[1:], strict=False))
    body = _draw_lines(lines, layout)
    for pill in pills:
        body.append(_draw_pill(layout.boxes[pill], pill))
    for primitive in graph:
        box = layout.boxes[primitive.name]
        colour = colours.get(primitive.engine or "", "c-none")
        body.append(
            _draw_box(box, texts[primitive.name], colour, primitive.is_mapped(), hover[primitive.name])
        )
    legend, legend_width = _legend(colours, lines, any(primitive.is_mapped() for primitive in graph))
    width = max(layout.width, legend_width) + 2 * _MARGIN
    height = layout.height + _LEGEND_HEIGHT + 2 * _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" role="img" width="{width:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>',
            f'<g transform="translate({_MARGIN},{_MARGIN})">',
            *body,
            "</g>",
            f'<g transform="translate({_MARGIN},{height - _MARGIN - 6:.0f})">{legend}</g>',
            "</svg>",
        ]
    )


def own_prompt(graph: Graph, primitive: Primitive) -> PromptParts:
    """Return the segments of a prompt that a prefill step computes itself.

    They are all that follow the prefix which an earlier prefill, named as its hint, has computed.
    """
    hint = primitive.arg(HINT)
    held = graph.by_name.get(hint.ref.name) if hint else None
    if held is None or primitive.prompt[: len(held.prompt)] != held.prompt:
        return primitive.prompt
    return primitive.prompt[len(held.prompt) :]


def own_args(graph: Graph, primitive: Primitive) -> tuple[Arg, ...]:
    """Return the arguments (input values) that a primitive waits for.

    Variables of a prompt are left out if they stand in the prefix that an earlier prefill computes.
    """
    if not primitive.prompt:
        return primitive.args
    covered = {part.port for part in primitive.prompt if isinstance(part, Slot)}
    covered -= {part.port for part in own_prompt(graph, primitive) if isinstance(part, Slot)}
    return tuple(arg for arg in primitive.args if arg.port not in covered)


def _texts(graph: Graph, primitive: Primitive) -> list[str]:
    """Lines of text in a box: name, op and engine, and for a prefill the part of the prompt it computes."""
    lines = [primitive.name, f"{primitive.op} @{primitive.engine}" if primitive.engine else primitive.op]
    if primitive.prompt:
        lines.append(" ".join(_segment(part, primitive) for part in own_prompt(graph, primitive)))
    return [_cut(line) for line in lines]


def _segment(part: Constant | Slot, primitive: Primitive) -> str:
    if isinstance(part, Constant):
        return "“…”"
    arg = primitive.arg(part.port)
    return str(arg.ref) if arg else part.port


def _lines(graph: Graph, ops: Ops) -> list[_Line]:
    """One line per edge; an ORDER edge only where no other joins the same two."""
    types = verify(graph, ops)
    inputs = {name for name, _ in graph.inputs}
    lines: list[_Line] = []
    joined: set[tuple[str, str]] = set()
    for primitive in graph:
        for arg in own_args(graph, primitive):
            name = arg.ref.name
            tail = f"%{name}" if name in inputs else name
            joined.add((tail, primitive.name))
            if arg.port == HINT or types[name, arg.ref.port] == "kv":
                kind = "kv"
            else:
                kind = "effect" if types[name, arg.ref.port] == "effect" else "data"
            streams = arg.piece is not None
            edge = Edge(tail, primitive.name, (kind, streams))
            lines.append(_Line(edge, kind, streams, _label(arg)))
    for name, ref in graph.outputs:
        tail = f"%{ref.name}" if ref.name in inputs else ref.name
        label = _label(Arg("", ref))
        lines.append(_Line(Edge(tail, f"return {name}", ("data", False)), "data", False, label))
    for before, after in graph.order:
        if (before, after) not in joined:
            lines.append(_Line(Edge(before, after, "order"), "order"))
    return lines


def _label(arg: Arg) -> str:
    """Label of an edge: pieces, an item or a port, if it takes only that part of its value; or "guard"."""
    shown = [f"~{arg.piece}"] if arg.piece is not None else []
    shown += [f".{arg.ref.port}"] if arg.ref.port else []
    shown += [f"[{arg.ref.index}]"] if arg.ref.index is not None else []
    shown += ["when"] if arg.port == WHEN else []
    return " ".join(shown)


def _draw_lines(lines: Sequence[_Line], layout: Layout) -> list[str]:
    """Draw lines first, then tips and labels above them. The shared part of a bundle is drawn once."""
    paths: dict[str, None] = {}
    tips: list[str] = []
    for line, route in zip(lines, layout.routes, strict=True):
        style = f"{line.kind} stream" if line.streams else line.kind
        x, y = route[-1]
        stub = [(x - _STUB, y)] if line.label else []
        for a, b in pairwise([*route[:-1], *stub, (x, y)]):
            if a != b:
                paths[f'<path class="edge {style}" d="{_curve(a, b)}"/>'] = None
        tip = "stream" if line.streams else "order" if line.kind == "order" else ""
        tips.append(f'<path class="tip {tip}" d="M{x - 6:.1f} {y - 3.5:.1f}L{x - 1:.1f} {y:.1f}l-5 3.5"/>')
        if line.label:
            plain = "" if line.streams else " plain"
            tips.append(
                f'<text class="label{plain}" x="{x - 7:.1f}" y="{y - 7:.1f}">{_text(line.label)}</text>'
            )
    return [*paths, *tips]


def _curve(a: Point, b: Point) -> str:
    (ax, ay), (bx, by) = a, b
    if abs(ay - by) < 0.05:
        return f"M{ax:.1f} {ay:.1f}H{bx:.1f}"
    middle = (ax + bx) / 2
    return f"M{ax:.1f} {ay:.1f}C{middle:.1f} {ay:.1f} {middle:.1f} {by:.1f} {bx:.1f} {by:.1f}"


def _draw_box(box: Box, lines: Sequence[str], colour: str, is_mapped: bool, hover: str) -> str:
    """Draw a rounded box; a mapped primitive gets a second box behind it, like a stack."""
    top = box.y - box.height / 2
    size = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="7"'
    shapes = [f'<rect class="paper" x="{box.x:.1f}" y="{top:.1f}" {size}/>']
    if is_mapped:
        behind = f'x="{box.x + 4:.1f}" y="{top - 4:.1f}" {size}'
        shapes = [
            f'<rect class="paper" {behind}/><rect class="box {colour}" {behind}/>',
            *shapes,
        ]
    shapes.append(f'<rect class="box {colour}" x="{box.x:.1f}" y="{top:.1f}" {size}/>')
    texts = [
        f'<text class="{"small" if i else "name"}" x="{box.x + 10:.1f}" y="{top + 16 + 14 * i:.1f}">'
        f"{_text(line)}</text>"
        for i, line in enumerate(lines)
    ]
    return f"<g><title>{_text(' '.join(hover.split()))}</title>{''.join(shapes + texts)}</g>"


def _draw_pill(box: Box, text: str) -> str:
    shown = _cut(text.removeprefix("%"))
    at = f'x="{box.x:.1f}" y="{box.y - 12:.1f}" width="{box.width:.1f}" height="24" rx="12"'
    return (
        f'<rect class="paper" {at}/><rect class="pill" {at}/>'
        f'<text class="small" x="{box.x + box.width / 2:.1f}" y="{box.y:.1f}" text-anchor="middle">'
        f"{_text(shown)}</text>"
    )


def _legend(colours: dict[str, str], lines: Sequence[_Line], has_mapped: bool) -> tuple[str, float]:
    """Draw a legend of the engines and of the kinds of edges that occur; returns it and its width."""
    shown: list[str] = []
    x = 0.0
    for engine, colour in colours.items():
        shown.append(f'<rect class="box {colour}" x="{x:.0f}" y="-6" width="12" height="12" rx="3"/>')
        shown.append(f'<text class="small" x="{x + 18:.0f}" y="0">{_text(engine)}</text>')
        x += 36 + 6.6 * len(engine)
    kinds = dict.fromkeys("data stream" if line.streams else line.kind for line in lines)
    names = {"data stream": "stream ~piece", "kv": "KV", "effect": "effect", "order": "order"}
    for style, name in {style: names.get(style, style) for style in kinds}.items():
        shown.append(f'<path class="edge {style}" d="M{x:.0f} 0h26"/>')
        shown.append(f'<text class="small" x="{x + 32:.0f}" y="0">{name}</text>')
        x += 50 + 6.6 * len(name)
    if has_mapped:
        shown.append(f'<text class="small" x="{x:.0f}" y="0">stacked box: applied to each item</text>')
        x += 190
    return "".join(shown), x


def _width(lines: Sequence[str]) -> float:
    """Estimated width of text, with room for any system font."""
    return 24.0 + max(7.2 * len(lines[0]), *(6.5 * len(line) for line in lines))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


def _text(text: str) -> str:
    return escape(text, quote=True)
