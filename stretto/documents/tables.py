"""Writes tables as lines of text that can be read one by one, because each names its columns.

A row becomes the line `| Product: Lamp | Price: 3 EUR`. `split_sentences` takes such a line as one sentence,
so no chunk and no quote parts a value from its column. A row that is too long for a chunk becomes several
lines, each of which begins with the row's first cell.

The first row of a table that fills two cells or more is its header, if it holds no number but years. Rows
above it are titles. The cell above the first column may be empty. An empty row ends a table; the next one has
a header of its own, or keeps the header before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

ROW_MARK = "| "
MAX_ROW_CHARS = 480
"""Longest line of a row. A chunk of the usual 256 tokens holds it."""
_MAX_NAME_CHARS = 120
_NUMBER = re.compile(r"[-+(]?[$€£¥]?\d[\d.,']*[%)]?")
_YEAR = re.compile(r"(?:19|20)\d\d")

Row: TypeAlias = Sequence[str | None]
"""Cells of a row. None stands where the cell to the left goes on; "" is an empty cell."""


def table_text(rows: Iterable[Row], header: Row | None = None) -> str:
    """Write a table as text, a line for each row; "" if all cells are empty.

    Args:
        header: names of the columns, where they are known; None looks for them in the rows.
    """
    lines: list[str] = []
    names: Sequence[str] = () if header is None else _names(_cleaned(header))
    for is_empty, group in groupby(map(_cleaned, rows), key=lambda row: not any(row)):
        if is_empty:
            continue
        block = list(group)
        if not all(map(_is_title, block)):
            num_titles = next(at for at, row in enumerate(block) if not _is_title(row))
            lines += [cell for row in block[:num_titles] for cell in row if cell]
            block = block[num_titles:]
        if header is None and _is_header(block[0]) and len(block) > 1:
            names = _names(block[0])
            block = block[1:]
        lines += [line for row in block for line in _lines(_pairs(row, names))]
    return "\n".join(lines)


def record_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Write the names and values of one record as a row is written; "" if all values are empty."""
    filled = [(name, " ".join(value.split())) for name, value in pairs if value and not value.isspace()]
    return "\n".join(_lines(filled)) if filled else ""


def _cleaned(row: Row) -> Row:
    return [None if cell is None else " ".join(cell.split()) for cell in row]


def _is_title(row: Row) -> bool:
    """Return whether a row fills one cell only, which is not the second of two."""
    return sum(map(bool, row)) == 1 and (bool(row[0]) or len(row) > 2)


def _is_header(row: Row) -> bool:
    return not _is_title(row) and not any(
        cell and _NUMBER.fullmatch(cell) and not _YEAR.fullmatch(cell) for cell in row
    )


def _names(header: Row) -> list[str]:
    """Return the names of the columns. A cell that goes on names all columns that it covers."""
    names: list[str] = []
    for cell in header:
        if cell is None:
            names.append(names[-1] if names else "")
        else:
            names.append(cell if len(cell) <= _MAX_NAME_CHARS else f"{cell[:_MAX_NAME_CHARS]}…")
    return names


def _pairs(row: Row, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the filled cells of a row, each with the name of its column."""
    return [(names[at] if at < len(names) else "", cell) for at, cell in enumerate(row) if cell]


def _lines(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of a row. All after the first repeat its first cell."""
    parts = [part for name, cell in pairs for part in _named(name.rstrip(":"), cell)]
    first = parts[0][:_MAX_NAME_CHARS]
    line = ROW_MARK + parts[0]
    for part in parts[1:]:
        if len(line) + 3 + len(part) > MAX_ROW_CHARS:
            yield line
            line = ROW_MARK + first
        line = f"{line} | {part}"
    yield line


def _named(name: str, cell: str) -> Iterator[str]:
    """Yield a cell with the name of its column. A long cell comes in parts, each with the name."""
    room = MAX_ROW_CHARS // 2
    while len(cell) > room:
        cut = cell.rfind(" ", 1, room)
        cut = cut if cut > 0 else room
        yield f"{name}: {cell[:cut]}" if name else cell[:cut]
        cell = cell[cut:].lstrip()
    yield f"{name}: {cell}" if name else cell
