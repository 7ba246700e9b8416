"""Finds tables on the pages of PDF files, which hold words and positions, but no tables.

Blank lines part paragraphs and headings, where lines stand further apart than usual.

A wide gap parts two cells of a line. Lines are rows of a table if their cells stand in columns: a cell
overlaps one column, or none, and no two cells of a line the same. A line under a row with nothing in the
first column goes on with the cells above it, and one at the height of that row is its rest. A short line in
the first column alone is a row if another row follows. Three lines of two cells or more make a table, if
cells have few words: prose in two columns is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from stretto.documents.tables import table_text

if TYPE_CHECKING:
    from pypdfium2 import PdfTextPage

_GAP_OF_CELLS = 0.7
"""Width of a gap between cells, as a share of the height of the line. Blanks of prose are half as wide."""
_LEADING = 1.6
"""Largest distance from a line to the one that goes on with its cells, as a share of its height."""
_SAME_LINE = 0.2
"""Largest distance of the bottoms of two parts of a row, as a share of the height."""
_STEP_OF_PARAGRAPHS = 1.35
"""Distance of lines from which a paragraph begins, as a multiple of the page's usual one."""
_LEAST_ROWS = 3
_MAX_COLUMNS = 40
_MAX_ROWS = 200
_CHECKED_ROWS = 20
"""Rows after which columns of prose are told from a table, so that no long page takes long."""
_MAX_WORDS = 8
"""Largest mean number of words in a cell."""
_CURRENCIES = frozenset("$€£¥")
_ITEM = re.compile(r"[-*+•–◦▪]|(?:\d{1,3}|[A-Za-z])[.)]")
_WORD = re.compile(r"\S+")


class Cell(NamedTuple):
    """Words of a line without a wide gap, and their borders from left to right, in points."""

    text: str
    left: float
    right: float


class Line(NamedTuple):
    """A line of a page: its cells, its bottom from below, and its height, in points."""

    cells: Sequence[Cell]
    bottom: float
    height: float


def page_text(page: PdfTextPage) -> str:
    """Return the text of a page, with a line for each row of its tables."""
    text: str = page.get_text_range()
    if page.count_chars() != len(text):  # characters and their positions cannot be told
        return text.replace("\r\n", "\n")
    written = text.split("\r\n")
    starts = [0]
    for one in written:
        starts.append(starts[-1] + len(one) + 2)
    lines = [_line(page, one, start) for one, start in zip(written, starts, strict=False)]
    return "\n".join(_with_tables(written, lines))


def _line(page: PdfTextPage, text: str, start: int) -> Line:
    cells: list[Cell] = []
    bottom = height = 0.0
    for word in _WORD.finditer(text):
        left, low, _, high = page.get_charbox(start + word.start(), loose=True)
        right = page.get_charbox(start + word.end() - 1, loose=True)[2]
        bottom, height = (low, high - low) if not cells else (bottom, height)
        last = cells[-1] if cells else None
        if last is None or (left - last.right > _GAP_OF_CELLS * height and last.text not in _CURRENCIES):
            cells.append(Cell(word[0], left, right))
        else:
            cells[-1] = Cell(f"{last.text} {word[0]}", last.left, right)
    return Line(cells, bottom, height)


def _with_tables(written: Sequence[str], lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lines of a page, with its tables written as rows, and an empty line above a paragraph."""
    steps = [above.bottom - line.bottom for above, line in pairwise(lines) if above.bottom > line.bottom]
    far = _STEP_OF_PARAGRAPHS * median(steps) if steps else 0.0
    at = 0
    while at < len(lines):
        table = _Table()
        end = at
        while end < len(lines) and table.takes(lines[end], next(iter(lines[end + 1 : end + 2]), None)):
            end += 1
        if table.is_one():
            yield table.written()
            at = end
        else:
            if at and lines[at - 1].bottom - lines[at].bottom > far:
                yield ""
            yield written[at]
            at += 1


@dataclass(slots=True)
class _Table:
    """Lines of a table so far.

    Attributes:
        columns: left and right border of each column, in the order in which they were found.
        rows: cells of each row by column.
        last: the line that was taken last.
    """

    columns: list[tuple[float, float]] = field(default_factory=list)
    rows: list[dict[int, str]] = field(default_factory=list)
    last: Line | None = None

    def takes(self, line: Line, below: Line | None) -> bool:
        """Add a line to the table, if it fits there above the line `below`; return whether it does."""
        places = self._places(line)
        if places is None or len(self.rows) == _MAX_ROWS:
            return False
        if len(self.rows) == _CHECKED_ROWS and not self.is_one():
            return False
        if self._is_beside(line, places):
            self.rows[-1].update((column, cell.text) for column, cell in zip(places, line.cells, strict=True))
        elif self._goes_on(line, places):
            for column, cell in zip(places, line.cells, strict=True):
                self.rows[-1][column] += f" {cell.text}"
        elif len(places) > 1 or self._names_group(places, below):
            self.rows.append({column: cell.text for column, cell in zip(places, line.cells, strict=True)})
        else:
            return False
        self._widen(line, places)
        self.last = line
        return True

    def _places(self, line: Line) -> list[int] | None:
        """Return the column of each cell, beginning with the number of columns for new ones; None if the
        line is no row.
        """
        if not 0 < len(line.cells) <= _MAX_COLUMNS or _ITEM.fullmatch(line.cells[0].text):
            return None
        places: list[int] = []
        num_columns = len(self.columns)
        for cell in line.cells:
            found = [
                at for at, (left, right) in enumerate(self.columns) if cell.left < right and left < cell.right
            ]
            if len(found) > 1 or (found and found[0] in places):
                return None
            places += found or [num_columns]
            num_columns += not found
        return places if num_columns <= _MAX_COLUMNS else None

    def _is_beside(self, line: Line, places: Sequence[int]) -> bool:
        """Return whether a line is the rest of the row above it: PDFium parts some rows."""
        return (
            self.last is not None
            and abs(self.last.bottom - line.bottom) < _SAME_LINE * line.height
            and self.rows[-1].keys().isdisjoint(places)
        )

    def _goes_on(self, line: Line, places: Sequence[int]) -> bool:
        """Return whether a line goes on with cells of the row above it."""
        return (
            self.last is not None
            and 0 < self.last.bottom - line.bottom < _LEADING * line.height
            and len(places) < len(self.rows[-1])
            and self._first() in self.rows[-1].keys() - set(places)
            and self.rows[-1].keys() >= set(places)
        )

    def _names_group(self, places: Sequence[int], below: Line | None) -> bool:
        """Return whether a line of one cell names the rows below it."""
        return (
            below is not None
            and len(below.cells) > 1
            and places == [self._first()]
            and self._places(below) is not None
        )

    def _first(self) -> int | None:
        """Return the column that stands furthest to the left."""
        return min(range(len(self.columns)), key=self.columns.__getitem__, default=None)

    def _widen(self, line: Line, places: Sequence[int]) -> None:
        for column, cell in zip(places, line.cells, strict=True):
            if column == len(self.columns):
                self.columns.append((cell.left, cell.right))
            left, right = self.columns[column]
            self.columns[column] = min(left, cell.left), max(right, cell.right)

    def is_one(self) -> bool:
        """Return whether the lines make a table."""
        cells = [cell for row in self.rows if len(row) > 1 for cell in row.values()]
        num_rows = sum(len(row) > 1 for row in self.rows)
        return num_rows >= _LEAST_ROWS and sum(len(cell.split()) for cell in cells) <= _MAX_WORDS * len(cells)

    def written(self) -> str:
        """Return the rows as text."""
        order = sorted(range(len(self.columns)), key=self.columns.__getitem__)
        rows = [[row.get(column, "") for column in order] for row in self.rows]
        return table_text(rows, None if all(map(_is_name, self.rows[0].values())) else ())


def _is_name(text: str) -> bool:
    """Return whether a cell of the first row may name its column."""
    return not text[0].islower() and text[0].isalnum() and not text.endswith((".", ",", ";"))
