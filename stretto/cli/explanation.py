"""The work of `stretto explain`: prints an app's graph, and what each optimisation pass changes in it."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stretto.apps.components.choices import Choices
from stretto.apps.template import Configuration, Template
from stretto.apps.vocabulary import DEFAULT
from stretto.cli import parsing
from stretto.cli.documents import read_documents
from stretto.cli.engines import EngineOptions, assemble
from stretto.cli.learned_rows import learned_text
from stretto.cli.names import SEARCH
from stretto.engines.catalogue import STAND_IN
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


def print_settings(app: str, engines: EngineOptions) -> None:
    """Print the settings that can be changed in an app as it is for its LLM.

    Raises:
        ConfigError: there is no such app.
    """
    template = parsing.template(app, small_llm=engines.has_small_llm)
    text = _left_out(app, template) + _settings(template)
    Console(emoji=False).print(text, markup=False, highlight=False, soft_wrap=True, end="")


def print_explanation(
    app: str,
    docs: list[Path] | None,
    passes: str,
    engines: EngineOptions,
    configuration: Configuration,
    html: Path | None,
    max_bytes: int,
    *,
    is_unrolled: bool,
    is_strict: bool,
) -> None:
    """Print an app's graph before, between and after the passes, with what these are predicted to save.

    Args:
        engines: options that say which LLM and which engines file there are; they decide what the app is.
        docs: documents whose chunks are counted; None counts none.
        passes: names of passes, as the option `--passes` has them.
        configuration: settings of the app's components.
        html: file for a page with everything; None writes none.
        max_bytes: size of the largest document that is read.
        is_unrolled: whether to draw the graph stage by stage too.
        is_strict: whether a document that cannot be read is an error.

    Raises:
        UserError: an argument is wrong; the message says what would be right.
    """
    console = Console(emoji=False)
    template = parsing.template(app, small_llm=engines.has_small_llm)
    assembled = assemble(engines, searches=app == SEARCH, default_llm=STAND_IN)  # plans need no model
    idle = idle_conditions(assembled.deployments)
    before = template.lower(configuration)
    lengths = _lengths(docs, before, max_bytes, is_strict=is_strict)
    steps = _steps(before, passes, idle)
    graph = steps[-1].graph
    if omitted := _left_out(app, template):
        console.print(omitted, markup=False, highlight=False, soft_wrap=True)
    for step in steps:
        console.print(f"[bold]{step.heading}[/]")
        console.print(_coloured(step.text or "  nothing to do\n"), soft_wrap=True)
    depths = {node.name: node.depth for node in compile_graph(graph, idle.profiles).nodes}
    order = sorted(depths.items(), key=lambda item: -item[1])
    console.print("[bold]depths[/]")
    console.print("  " + ", ".join(f"{name} {depth}" for name, depth in order) + "\n", highlight=False)
    if is_unrolled:
        console.print("[bold]unrolled[/]")
        console.print(unroll(graph, lengths, idle.profiles), markup=False, highlight=False, soft_wrap=True)
    if html is not None:
        sections = [(step.heading, step.text, draw_graph(step.graph, title="")) for step in steps]
        parsing.write("--html", html, graph_page(template.name, sections))
        console.print(f"wrote {html}", markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Step:
    """What is shown of one step of an explanation."""

    heading: str
    graph: Graph
    text: str


def _steps(graph: Graph, passes: str, idle: Conditions) -> list[_Step]:
    """Return the graph of an app before, between and after the passes, and what is known of them."""
    names = DEFAULT.select_passes(passes)
    weighed: dict[str, Verdict] = {}
    predictions = ""
    if names == WEIGHED:
        names = tuple(DEFAULT.passes)
        weighed = {verdict.name: verdict for verdict in weigh(graph, idle, DEFAULT.passes)[1]}
        predictions = _predictions(graph, idle, weighed)
    left_out = {name: f"  {verdict.reason}\n" for name, verdict in weighed.items() if not verdict.is_kept}
    steps = [_Step("p-graph", graph, print_graph(graph))]
    chosen = {name: _leave if name in left_out else DEFAULT.passes[name] for name in names}
    for number, (name, changed) in enumerate(run_passes(graph, idle.profiles, chosen)):
        if number < len(chosen) or changed is not graph:  # later sweeps that change nothing are not shown
            steps.append(_Step(name, changed, left_out.get(name) or _difference(graph, changed)))
        graph = changed
    if predictions:
        steps.append(_Step("passes, as predicted", graph, predictions))
    steps.append(_Step("e-graph", graph, print_graph(graph)))
    if learned := learned_text({primitive.engine for primitive in graph if primitive.engine}):
        steps.append(_Step("whose turn, as learned by `stretto serve`", graph, learned))
    return steps


def _leave(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Leave a graph as it is: stands for a pass that is left out."""
    return graph


def _left_out(app: str, template: Template) -> str:
    """Return a line that names the components of an app that its LLM does without; "" if there are none."""
    names = {component.name for component in template.components}
    whole = parsing.template(app).components
    if not (omitted := [component.name for component in whole if component.name not in names]):
        return ""
    return (
        f"left out, as the LLM is small (weights of less than 1 GB) and answers better without: "
        f"{', '.join(omitted)}; with a larger --llm they run\n"
    )


def _settings(template: Template) -> str:
    """Text with the components of an app, their settings and the defaults."""
    lines = []
    for component in template.components:
        lines.append(f"{component.name}: {inspect.getdoc(component.Config)}\n")
        for name, value in vars(component.config).items():
            lines.append(f"  {component.name}.{name}={json.dumps(value)}\n")
    lines.append(f"every component: {inspect.getdoc(Choices)}\n")
    for component in template.components:
        own = vars(component.config)  # a setting of its own comes before a choice of the same name
        for name, value in ((n, v) for n, v in vars(component.choices).items() if n not in own):
            lines.append(f"  {component.name}.{name}={json.dumps(value)}\n")
    return "".join(lines)


def _lengths(docs: list[Path] | None, graph: Graph, max_bytes: int, *, is_strict: bool) -> dict[str, int]:
    """Lengths of the graph's lists; chunks are counted if there are documents."""
    if not docs:
        return {}
    from stretto.engines.batch.chunking import Chunking, ChunkingConfig
    from stretto.model.tasks import Task

    documents = read_documents(docs, max_bytes, Console(stderr=True, emoji=False), is_strict=is_strict)
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
