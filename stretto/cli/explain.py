"""`stretto explain`: shows the graph of an app's steps, and what each optimisation pass changes in it."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from stretto.cli import options, parsing
from stretto.cli.documents import read_documents
from stretto.cli.engines import EngineOptions, assemble
from stretto.default_vocabulary import DEFAULT
from stretto.engines.catalogue import STAND_IN
from stretto.frontend.choices import Choices
from stretto.frontend.template import Template
from stretto.graph.compile import compile_graph
from stretto.graph.graph import Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Profiles
from stretto.graph.passes.conditions import Conditions
from stretto.graph.passes.pipeline import run_passes
from stretto.graph.passes.weigh import WEIGHED, Verdict, weigh
from stretto.graph.text import print_graph
from stretto.graph.unroll import unroll
from stretto.runtime.conditions import idle_conditions
from stretto.trace.drawing import draw_graph
from stretto.trace.html import graph_page

_MANY = 8
"""Number of other queries that stands for a high load."""
_LONG_CONSTANT = re.compile(r'("(?:[^"\\]|\\.){24})(?:[^"\\]|\\.)+"')


def explain(
    question: Annotated[
        str | None, typer.Argument(help="A question, which is checked in the same way as by `ask`.")
    ] = None,
    docs: options.Docs = None,
    app: options.App = options.ADVANCED,
    passes: options.Passes = "weighed",
    engines: options.EnginesFile = None,
    settings: options.Settings = None,
    list_settings: Annotated[
        bool, typer.Option("--settings", help="Only list the settings that --set can change in this app.")
    ] = False,
    unrolled: Annotated[
        bool, typer.Option("--unroll", help="Also draw the e-graph stage by stage, as in the Teola paper.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write everything, with drawings, as one HTML page.", metavar="FILE")
    ] = None,
    max_bytes: options.MaxBytes = options.MAX_BYTES,
    strict: options.Strict = False,
) -> None:
    """Show an app's graph before, between and after the passes, and what these are predicted to save."""
    console = Console()
    if question is not None:
        parsing.checked_question(question)
    if html is not None:
        parsing.checked_target("--html", html)
    template = parsing.template(app)
    if list_settings:
        console.print(_settings(template), markup=False, highlight=False, soft_wrap=True, end="")
        return
    assembled = assemble(
        EngineOptions(file=engines), searches=app == options.SEARCH, default_llm=STAND_IN
    )  # plans need no model
    idle = idle_conditions(assembled.deployments)
    profiles = idle.profiles
    graph = template.lower(parsing.configuration(settings))
    names = DEFAULT.select_passes(passes)
    weighed: dict[str, Verdict] = {}
    predictions = ""
    if names == WEIGHED:
        names = tuple(DEFAULT.passes)
        weighed = {verdict.name: verdict for verdict in weigh(graph, idle, DEFAULT.passes)[1]}
        predictions = _predictions(graph, idle, weighed)
    left_out = {name: f"  {verdict.reason}\n" for name, verdict in weighed.items() if not verdict.is_kept}
    lengths = _lengths(docs, graph, max_bytes, is_strict=strict)
    steps = [("p-graph", graph, print_graph(graph))]
    chosen = {name: _leave if name in left_out else DEFAULT.passes[name] for name in names}
    for number, (name, changed) in enumerate(run_passes(graph, profiles, chosen)):
        if number < len(chosen) or changed is not graph:  # later sweeps that change nothing are not shown
            steps.append((name, changed, left_out.get(name) or _difference(graph, changed)))
        graph = changed
    if predictions:
        steps.append(("passes, as predicted", graph, predictions))
    depths = {node.name: node.depth for node in compile_graph(graph, profiles).nodes}
    steps.append(("e-graph", graph, print_graph(graph)))
    for heading, _, text in steps:
        console.print(f"[bold]{heading}[/]")
        console.print(_coloured(text or "  nothing to do\n"), soft_wrap=True)
    order = sorted(depths.items(), key=lambda item: -item[1])
    console.print("[bold]depths[/]")
    console.print("  " + ", ".join(f"{name} {depth}" for name, depth in order) + "\n", highlight=False)
    if unrolled:
        console.print("[bold]unrolled[/]")
        console.print(unroll(graph, lengths, profiles), markup=False, highlight=False, soft_wrap=True)
    if html is not None:
        sections = [(heading, text, draw_graph(g, title="")) for heading, g, text in steps]
        parsing.write("--html", html, graph_page(template.name, sections))
        console.print(f"wrote {html}", markup=False, highlight=False, soft_wrap=True)


def _leave(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Leave a graph as it is: stands for a pass that is left out."""
    return graph


def _settings(template: Template) -> str:
    """Text with the components of an app, their settings and the defaults."""
    lines = []
    for component in template.components:
        lines.append(f"{component.name}: {inspect.getdoc(component.Config)}\n")
        for name, value in vars(component.config).items():
            lines.append(f"  {component.name}.{name}={json.dumps(value)}\n")
    lines.append(f"every component: {inspect.getdoc(Choices)}\n")
    for component in template.components:
        for name, value in vars(component.choices).items():
            lines.append(f"  {component.name}.{name}={json.dumps(value)}\n")
    return "".join(lines)


def _lengths(docs: list[Path] | None, graph: Graph, max_bytes: int, *, is_strict: bool) -> dict[str, int]:
    """Lengths of the graph's lists; chunks are counted if there are documents."""
    if not docs:
        return {}
    from stretto.engines.batch.chunking import Chunking, ChunkingConfig
    from stretto.tasks import Task

    documents = read_documents(docs, max_bytes, Console(stderr=True), is_strict=is_strict)
    lengths = {"files": len(documents)}
    for primitive in graph:
        if primitive.op == "chunk":
            inputs = {"files": documents}
            task = Task(
                id=0,
                query="explain",
                step=primitive.name,
                op="chunk",
                inputs=inputs,
                config=dict(primitive.config),
                num_items=len(documents),
                each=("files",),
            )
            (chunks,) = Chunking(ChunkingConfig()).run([task])
            assert isinstance(chunks, list)
            lengths[primitive.name] = sum(map(len, chunks))
    return lengths


def _predictions(graph: Graph, idle: Conditions, weighed: Mapping[str, Verdict]) -> str:
    """Text with what each pass is predicted to save and cost, for a query alone and beside others."""
    _, verdicts = weigh(graph, replace(idle, num_others=_MANY), DEFAULT.passes)
    busy = {verdict.name: verdict.reason for verdict in verdicts}
    rows = [("", "alone", f"beside {_MANY} others")]
    rows += [(name, verdict.reason, busy.get(name, "-")) for name, verdict in weighed.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"  {line}\n" for line in lines)


def _difference(before: Graph, after: Graph) -> str:
    """Text with the lines that a pass removed and added."""
    if before == after:
        return ""
    lines = difflib.unified_diff(
        [" ".join(line.split()) for line in print_graph(before).splitlines()],
        [" ".join(line.split()) for line in print_graph(after).splitlines()],
        n=0,
        lineterm="",
    )
    changes = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    return "\n".join(f"{line[0]} {_shorten(line[1:].strip())}" for line in changes) + "\n"


def _shorten(line: str) -> str:
    """Shorten the long constants in a line."""
    return _LONG_CONSTANT.sub(r'\1…"', line)


def _coloured(text: str) -> Text:
    styles = {"+": "green", "-": "red"}
    coloured = Text()
    for line in text.splitlines():
        coloured.append(line + "\n", styles.get(line[:1], ""))
    return coloured
