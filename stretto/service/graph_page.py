"""The calls of a session as a graph, in text and HTML: what each is scheduled for, and where it has run.

Source: Parrot §4.2, §5.2.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.graph.graph import Slot
from stretto.model.tasks import Objective
from stretto.programs.fragment import Fragment, WaitingCall
from stretto.service.places import LastInstance, step_name
from stretto.trace.analysis.objectives import deduce_preferences
from stretto.trace.analysis.requests import AnalysedRequest, RequestGraph
from stretto.trace.analysis.text import print_analysis

_COLUMNS = ("request", "scheduled for", "prefixes", "state", "place")


@dataclass(frozen=True, slots=True)
class Line:
    """One request to an LLM, in words.

    Attributes:
        request: variables that it reads, and the one that it makes.
        preference: what it is scheduled for: criteria, task group, slack.
        prefixes: where its prompt begins like another's.
        state: whether its output has come.
        place: where a request of this step went last, and why.
    """

    request: str
    preference: str
    prefixes: str
    state: str
    place: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The parts, in order."""
        return self.request, self.preference, self.prefixes, self.state, self.place


def graph_lines(
    calls: Sequence[WaitingCall],
    wanted: Mapping[str, Objective],
    state: Callable[[str], str],
    places: Mapping[str, LastInstance],
) -> list[Line]:
    """Return a line for each request to an LLM of the calls of a session.

    Args:
        wanted: criteria of the variables that somebody waits for.
        state: function that says how a variable is.
        places: last place of each step, by name.
    """
    if not calls:
        return []
    fragment = Fragment(calls, lambda _: False)
    graph, names = fragment.build()
    bind, _ = fragment.bind(names)
    requests = _renamed(RequestGraph.of(graph), bind)
    printed = print_analysis(requests, deduce_preferences(requests, wanted)).splitlines()
    found = []
    for request, line in zip(requests.requests, printed, strict=True):
        place = places.get(step_name(request.name))
        where = "" if place is None else f"{place.engine} {place.instance}"
        if place is not None and place.reason:
            where += f": {place.reason}"
        name, preference, prefixes = line.split(" | ", 2)
        found.append(Line(name, preference, prefixes, state(_variable_of(request, requests, bind)), where))
    return found


def _variable_of(request: AnalysedRequest, graph: RequestGraph, names: Mapping[str, str]) -> str:
    """Return the variable of the session that has what a request makes, transformed if that is asked for."""
    if request.makes in names.values():
        return request.makes
    return next((made for made, read in graph.comes_of.items() if read == (request.makes,)), request.makes)


def text_of_lines(lines: Sequence[Line]) -> str:
    """Return the lines as text."""
    return "".join(" | ".join(cell for cell in line.cells if cell) + "\n" for line in lines)


def as_html(lines: Sequence[Line], session: str) -> str:
    """Return the lines as a page."""
    head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line.cells)}</tr>\n" for line in lines
    )
    title = html.escape(f"Session {session[:6]}…")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>\n'
        "<style>body{font:14px sans-serif}td,th{border:1px solid #ccc;padding:4px;text-align:left}"
        "table{border-collapse:collapse}.scroll{overflow-x:auto}</style>\n"
        f'<h1>{title}</h1><div class="scroll"><table><tr>{head}</tr>\n{rows}</table></div></html>\n'
    )


def _renamed(graph: RequestGraph, names: Mapping[str, str]) -> RequestGraph:
    """Return the same requests with the names that variables have in the session."""

    def name_of(variable: str) -> str:
        return names.get(variable, variable)

    def renamed(request: AnalysedRequest) -> AnalysedRequest:
        prompt = tuple(
            Slot(name_of(part.port)) if isinstance(part, Slot) else part for part in request.prompt
        )
        reads = tuple(map(name_of, request.reads))
        return replace(request, prompt=prompt, reads=reads, makes=name_of(request.makes))

    comes_of = {name_of(made): tuple(map(name_of, read)) for made, read in graph.comes_of.items()}
    return RequestGraph(tuple(map(renamed, graph.requests)), comes_of)
