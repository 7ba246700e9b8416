"""The work of `stretto explain`: prints an app's graph, and what each optimisation pass changes in it."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stretto.apps.components.choices import Choices
from stretto.apps.template import Configuration, Template
from stretto.cli import parsing
from stretto.cli.engines import assemble
from stretto.cli.explained_steps import changes_text, pass_changes, steps_text
from stretto.cli.learned_rows import learned_text
from stretto.cli.names import SEARCH
from stretto.cli.options import EngineOptions
from stretto.cli.verbosity import aligned
from stretto.engines.llms import STAND_IN
from stretto.graph.compile import compile_graph
from stretto.graph.graph import Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Conditions, Profiles
from stretto.graph.passes.pipeline import run_passes
from stretto.graph.passes.weigh import WEIGHED, Verdict, weigh
from stretto.graph.text import print_graph
from stretto.runtime.conditions import idle_conditions
from stretto.sched.vocabulary import Vocabulary
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


@dataclass(frozen=True)
class Explained:
    """An app's graph, and what each pass has made of it.

    Attributes:
        omitted: line about components that are left out for a small LLM; "" if there is none.
        graph: the graph before the passes.
        passes: name of each pass, the graph after it, and its verdict if it was weighed.
        predictions: text with what each pass is predicted to save and to cost; "" if none was weighed.
        learned: text about what services have learned of the engines' programs; "" if nothing.
    """

    omitted: str
    graph: Graph
    passes: tuple[tuple[str, Graph, Verdict | None], ...]
    predictions: str
    learned: str
    profiles: Profiles
    ops: Ops

    @property
    def e_graph(self) -> Graph:
        """The graph that runs."""
        return self.passes[-1][1] if self.passes else self.graph

    def changes(self) -> Iterator[tuple[str, Graph, Graph, Verdict | None]]:
        """Yield the name of each pass, the graph before and after it, and its verdict."""
        before = self.graph
        for name, after, verdict in self.passes:
            yield name, before, after, verdict
            before = after

    def steps(self) -> list[tuple[str, Graph, str]]:
        """Return the headings of the whole explanation, each with its graph and text."""
        steps = [("p-graph", self.graph, print_graph(self.graph, self.ops))]
        for name, before, after, verdict in self.changes():
            is_left = verdict is not None and not verdict.is_kept
            text = f"  {verdict.reason}\n" if verdict and is_left else _difference(before, after, self.ops)
            steps.append((name, after, text))
        if self.predictions:
            steps.append(("passes, as predicted", self.e_graph, self.predictions))
        steps.append(("e-graph", self.e_graph, print_graph(self.e_graph, self.ops)))
        if self.learned:
            steps.append(("whose turn, as learned by `stretto serve`", self.e_graph, self.learned))
        return steps

    def drawing(self, graph: Graph) -> str:
        """Return a drawing of one of the graphs, as SVG text."""
        return draw_graph(compile_graph(graph, self.profiles, self.ops))

    def short_text(self) -> str:
        """Return which step runs after which, and what each pass has changed."""
        rows = [
            (name, pass_changes(before, after), "" if verdict is None else verdict.reason)
            for name, before, after, verdict in self.changes()
        ]
        return f"{steps_text(self.e_graph)}\n{changes_text(rows)}"


def explained_app(app: str, passes: str, engines: EngineOptions, configuration: Configuration) -> Explained:
    """Return an app's graph before, between and after the passes, with what these are predicted to save.

    Args:
        engines: options that say which LLM and which engines file there are; they decide what the app is.
        passes: names of passes, as the option `--passes` has them.
        configuration: settings of the app's components.

    Raises:
        UserError: an argument is wrong; the message says what would be right.
    """
    template = parsing.template(app, small_llm=engines.has_small_llm)
    known, ops = template.vocabulary, template.vocabulary.ops
    graph = before = template.lower(configuration)
    used = [primitive.engine for primitive in graph if primitive.engine]
    # plans need no model
    assembled = assemble(engines, searches=app == SEARCH, default_llm=STAND_IN, used=used)
    idle = idle_conditions(assembled.deployments)
    names = known.select_passes(passes)
    weighed: dict[str, Verdict] = {}
    if names == WEIGHED:
        names = tuple(known.passes)
        weighed = {verdict.name: verdict for verdict in weigh(graph, idle, known.passes, ops)[1]}
    predictions = _predictions(graph, idle, weighed, known) if weighed else ""
    left_out = {name for name, verdict in weighed.items() if not verdict.is_kept}
    chosen = {name: _leave if name in left_out else known.passes[name] for name in names}
    changed = []
    for number, (name, after) in enumerate(run_passes(graph, idle.profiles, chosen, ops)):
        if number < len(chosen) or after is not before:  # later sweeps that change nothing are not shown
            changed.append((name, after, weighed.get(name)))
        before = after
    learned = learned_text(set(used))
    return Explained(
        _left_out(app, template), graph, tuple(changed), predictions, learned, idle.profiles, ops
    )


def print_explanation(found: Explained, html: Path | None, *, is_whole: bool) -> None:
    """Print which steps an app takes and what the passes have changed.

    Args:
        html: file for a page with everything; None writes none.
        is_whole: whether to print the graph before, between and after the passes.
    """
    console = Console(emoji=False)
    if found.omitted:
        console.print(found.omitted, markup=False, highlight=False, soft_wrap=True)
    if not is_whole:
        console.print(found.short_text(), markup=False, highlight=False, soft_wrap=True)
        console.print("--whole prints the graphs, --html FILE draws them", markup=False, soft_wrap=True)
    else:
        _print_whole(console, found)
    if html is not None:
        sections = [(heading, text, found.drawing(g)) for heading, g, text in found.steps()]
        parsing.write("--html", html, graph_page(found.graph.name, sections))
        console.print(f"wrote {html}", markup=False, highlight=False, soft_wrap=True)


def _print_whole(console: Console, found: Explained) -> None:
    for heading, _, text in found.steps():
        console.print(f"[bold]{heading}[/]")
        console.print(_coloured(text or "  nothing to do\n"), soft_wrap=True)
    depths = {node.name: node.depth for node in compile_graph(found.e_graph, found.profiles, found.ops).nodes}
    order = sorted(depths.items(), key=lambda item: -item[1])
    console.print("[bold]depths[/]")
    console.print("  " + ", ".join(f"{name} {depth}" for name, depth in order) + "\n", highlight=False)


def _leave(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Leave a graph as it is: stands for a pass that is left out."""
    return graph


def _left_out(app: str, template: Template) -> str:
    """Return a line that names the components of an app that its LLM does without; "" if there are none."""
    if ":" in app:
        return ""
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


def _predictions(graph: Graph, idle: Conditions, weighed: Mapping[str, Verdict], known: Vocabulary) -> str:
    """Text with what each pass is predicted to save and cost, for a query alone and beside others."""
    _, verdicts = weigh(graph, replace(idle, num_others=_MANY), known.passes, known.ops)
    busy = {verdict.name: verdict.reason for verdict in verdicts}
    rows = [("", "alone", f"beside {_MANY} others")]
    rows += [(name, verdict.reason, busy.get(name, "-")) for name, verdict in weighed.items()]
    return "".join(f"  {line}\n" for line in aligned(rows))


def _difference(before: Graph, after: Graph, ops: Ops) -> str:
    """Text with the lines that a pass removed and added."""
    if before == after:
        return ""
    lines = difflib.unified_diff(
        [" ".join(line.split()) for line in print_graph(before, ops).splitlines()],
        [" ".join(line.split()) for line in print_graph(after, ops).splitlines()],
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
