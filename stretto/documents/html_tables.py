"""Reads a table of an HTML page, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.documents.tables import table_text

if TYPE_CHECKING:
    from bs4.element import NavigableString, Tag

_MAX_SPAN = 64


@dataclass(slots=True)
class _Cell:
    """A cell of a table, how many columns and rows it covers, and the texts in it."""

    is_header: bool
    num_columns: int
    num_rows: int
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def is_empty(self) -> bool:
        return not self.text.strip()


def data_table_text(elements: Iterable[Tag | NavigableString]) -> str:
    """Write a table that holds data as text, a line for each row; "" if it has one row or one column only.

    Args:
        elements: the visible elements and texts of the table, in order.
    """
    rows: list[list[_Cell]] = []
    caption: list[str] = []
    for element in elements:
        if isinstance(element, str):
            (rows[-1][-1].texts if rows and rows[-1] else caption).append(element)
        elif element.name == "tr":
            rows.append([])
        elif element.name in ("td", "th"):
            if not rows:
                rows.append([])
            rows[-1].append(_Cell(element.name == "th", _span(element, "colspan"), _span(element, "rowspan")))
        elif element.name in ("br", "p", "li", "div") and rows and rows[-1]:
            rows[-1][-1].texts.append(" ")
    laid_out = _laid_out(rows)
    if sum(map(bool, laid_out)) < 2 or max(map(len, laid_out)) < 2:
        return ""
    title = " ".join("".join(caption).split())
    header = laid_out.pop(0) if _begins_with_few_names(rows) else None
    return "\n".join(filter(None, (title, table_text(laid_out, header))))


def _begins_with_few_names(rows: Sequence[Sequence[_Cell]]) -> bool:
    """Return whether the first row is marked as the header, and names one column of several or none, as
    tables in Markdown do that need no header. It has a cell for each column, so it is no title.
    """
    first, second = rows[:2]
    return (
        all(cell.is_header and cell.num_columns == cell.num_rows == 1 for cell in first)
        and not all(cell.is_header for cell in second)
        and len(first) == max(map(len, rows)) > 1 >= sum(not cell.is_empty for cell in first)
    )


def _span(cell: Tag, name: str) -> int:
    value = str(cell.get(name, "1")).strip()
    return min(max(1, int(value)), _MAX_SPAN) if value.isdecimal() else 1


def _laid_out(rows: Iterable[Iterable[_Cell]]) -> list[list[str | None]]:
    """Return the cells by row and column. A cell that covers several rows stands in each of them."""
    grid: list[list[str | None]] = []
    below: dict[int, tuple[int, str]] = {}
    for row in rows:
        line: list[str | None] = []

        def go_on(line: list[str | None] = line) -> None:
            """Take the cells of the rows above that reach down here."""
            while (at := len(line)) in below:
                num_rows, text = below.pop(at)
                line.append(text)
                if num_rows > 1:
                    below[at] = num_rows - 1, text

        for cell in row:
            go_on()
            if cell.num_rows > 1:
                below[len(line)] = cell.num_rows - 1, cell.text
            line += [cell.text, *[None] * (cell.num_columns - 1)]
        go_on()
        grid.append(line)
    return grid
