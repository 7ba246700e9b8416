"""The calls of a session in text and HTML: what each reads and makes, and where and for what it has run."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stretto.programs.fragment import WaitingCall
from stretto.service.places import LastInstance

_COLUMNS = ("request", "state", "sent for", "place")


@dataclass(frozen=True, slots=True)
class ShownStep:
    """One request to an LLM, in words.

    Attributes:
        request: variables that it reads, and the one that it makes.
        state: whether its output has come.
        sent_for: objective of the last request of this step, as the scheduler has it; "" if none was sent.
        place: where that request went, and why.
    """

    request: str
    state: str
    sent_for: str
    place: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The parts, in order."""
        return self.request, self.state, self.sent_for, self.place


def graph_lines(
    calls: Sequence[WaitingCall], state: Callable[[str], str], places: Mapping[str, LastInstance]
) -> list[ShownStep]:
    """Return a line for each output that an LLM generates for the calls of a session.

    Args:
        state: function that says how a variable is.
        places: last place of each step, by name.
    """
    return [
        _line(f"{call.work.name}.{output}", call.reads, made, state(made), places)
        for call in calls
        if "llm" in call.work.engines.values()
        for output, made in call.outputs.items()
    ]


def _line(
    step: str, reads: Sequence[str], made: str, state: str, places: Mapping[str, LastInstance]
) -> ShownStep:
    request = f"{step}({', '.join(dict.fromkeys(reads))}) -> {made}"
    if (place := places.get(step)) is None:
        return ShownStep(request, state, "", "")
    where = f"{place.engine} {place.instance}" + (f": {place.reason}" if place.reason else "")
    return ShownStep(request, state, place.objective, where)


def text_of_lines(lines: Sequence[ShownStep]) -> str:
    """Return the lines as text."""
    return "".join(" | ".join(cell for cell in line.cells if cell) + "\n" for line in lines)


def as_html(lines: Sequence[ShownStep], session: str) -> str:
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
