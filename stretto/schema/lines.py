"""Line numbers of the keys of a TOML text, which the parser of the standard library does not tell.

The text has been parsed already, so only as much of TOML is understood as tells where a key begins: headers,
keys at the beginning of a line, and the ends of multi-line strings. A key inside an inline table is found at
the line where the table begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]

_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_PART = re.compile(_NAME)
_QUOTES = re.compile(r'"""|' + "'''")


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """Return the line number, from 1, of each table and key of a TOML text.

    The keys of the result are paths, such as ("replica", 0, "config").
    """
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    quotes = ""  # of the multi-line string that this line is in
    for number, line in enumerate(text.split("\n"), 1):
        if not quotes:
            if (header := _HEADER.match(line)) is not None:
                parts = _parts(header[2])
                table = _table_path(header[1] == "[[", parts, counts)
                found.setdefault(parts[:1], number)
                found.setdefault(table, number)
            elif (key := _KEY.match(line)) is not None:
                path = table
                for part in _parts(key[1]):
                    path = (*path, part)
                    found.setdefault(path, number)
        for quote in _QUOTES.findall(line):
            quotes = "" if quote == quotes else quotes or quote
    return found


def _table_path(is_element: bool, parts: tuple[str, ...], counts: dict[KeyPath, int]) -> KeyPath:
    """Return the path of a table by its header. `counts` has the place of the last table of each array."""
    path: KeyPath = ()
    for num_parts, part in enumerate(parts, 1):
        path = (*path, part)
        if is_element and num_parts == len(parts):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
