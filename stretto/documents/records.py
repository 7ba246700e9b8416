"""Parsers of data files: tables of comma-separated values, and JSON."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from stretto.documents.tables import record_text, table_text
from stretto.documents.text import decode
from stretto.model.values import Section

_DELIMITERS = ",;\t|"
_SAMPLE_ROWS = 20
_MAX_DEPTH = 100


def parse_csv(data: bytes) -> list[Section]:
    """Parse a table of values that commas, semicolons, tabs or bars separate, whichever fit its first rows
    best.

    Raises:
        ValueError: the bytes are not text, or a quote opens a cell that is longer than `csv` allows.
    """
    text = decode(data)
    lines = text.splitlines(keepends=True)
    delimiter = max(_DELIMITERS, key=lambda one: _fit(lines, one))
    try:
        return [Section(table_text(row for row in csv.reader(lines, delimiter=delimiter) if any(row)))]
    except csv.Error as cause:
        raise ValueError(f"is no readable table: {cause}") from cause


def _fit(lines: Sequence[str], delimiter: str) -> tuple[int, int]:
    """Return how many of the first rows have the same number of cells, and that number; zeros if it is 1."""
    try:
        rows = list(islice(csv.reader(lines, delimiter=delimiter), _SAMPLE_ROWS))
    except csv.Error:
        return 0, 0
    (width, num_rows), *_ = Counter(len(row) for row in rows if row).most_common(1) or [(1, 0)]
    return (num_rows, width) if width > 1 else (0, 0)


def parse_json(data: bytes) -> list[Section]:
    """Parse a JSON value. A list of objects is a table: an object is a row, its keys are columns. Of a single
    object, each key is a line, or a section if it holds a list of objects.

    Raises:
        ValueError: the bytes are no JSON, or are nested too deeply.
    """
    try:
        value = json.loads(decode(data))
    except RecursionError as cause:
        raise ValueError("is nested too deeply") from cause
    except ValueError as cause:
        raise ValueError(f"is no JSON: {cause}") from cause
    if isinstance(value, Mapping):
        flat = {key: one for key, one in value.items() if not _is_table(one)}
        tables = [(key, one) for key, one in value.items() if _is_table(one)]
        sections = [Section(_lines_of(flat))]
        sections += [Section(f"{key}\n\n{_table(rows)}", title=key) for key, rows in tables]
        return sections
    if _is_table(value):
        return [Section(_table(value))]
    return [Section(_lines_of(value))]


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _table(records: Sequence[Mapping[str, object]]) -> str:
    return "\n".join(filter(None, (record_text(_leaves(record, "", 0)) for record in records)))


def _lines_of(value: object) -> str:
    return "\n\n".join(f"{path}: {text}" if path else text for path, text in _leaves(value, "", 0) if text)


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield what a value holds: for each leaf its path, such as "address.city", and its text. A list of plain
    values is one leaf.
    """
    if depth == _MAX_DEPTH or not isinstance(value, Mapping | list):
        yield path, _plain(value)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves(one, f"{path}.{key}" if path else key, depth + 1)
    elif any(isinstance(one, Mapping | list) for one in value):
        for number, one in enumerate(value, start=1):
            yield from _leaves(one, f"{path}.{number}" if path else str(number), depth + 1)
    else:
        yield path, ", ".join(map(_plain, value))


def _plain(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
