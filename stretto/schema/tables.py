"""The tables of an engines file: `[[engine]]`, `[[replica]]`, `[machine]`, `[service]`, `[router]`.

One schema serves every command: each reads the tables that concern it, and refuses keys that it does not
know in them. A table with another name is refused by all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from stretto.model.errors import ConfigError
from stretto.schema.fields import build, check_keys
from stretto.schema.lines import KeyPath, key_lines
from stretto.schema.typed import ValueProblem

ARRAYS = ("engine", "replica")
SINGLES = ("machine", "service", "router")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One table of an engines file (TOML that describes engines), such as the second `[[replica]]`: its
    values, and where they stand.

    Attributes:
        tables: the whole file.
        path: keys that lead to the table, as in ("replica", 1).
    """

    tables: Tables
    path: KeyPath
    values: Mapping[str, Any]

    def place(self, *keys: str | int) -> str:
        """Return where a key of this table stands, as "file:line"; the table's line if it is not there."""
        return self.tables.place((*self.path, *keys))

    def error(self, message: str, *keys: str | int) -> ConfigError:
        """Return an error with this message, preceded by the engines file and the line where a key of this
        table stands. `keys` are the nested keys that lead to it.
        """
        return ConfigError(f"{self.place(*keys)}: {message}")

    def without(self, *keys: str) -> TableRow:
        """Return a copy of this table of an engines file without some of its keys."""
        kept = {key: value for key, value in self.values.items() if key not in keys}
        return TableRow(self.tables, self.path, kept)

    def table(self, key: str) -> TableRow:
        """Return the TOML table that stands under `key` in this table; an empty one if there is none.

        Raises:
            ConfigError: the value is no table.
        """
        values = self.values.get(key, {})
        if not isinstance(values, dict):
            raise self.error(f"{key} is {values!r}; it must be a table", key)
        return TableRow(self.tables, (*self.path, key), values)

    def check_keys(self, known: Iterable[str]) -> None:
        """Check that the table has no other keys than `known`. Raises ConfigError if it has."""
        try:
            check_keys(self.values, known)
        except ValueProblem as problem:
            raise self.error(problem.message, *problem.keys) from None

    def build(
        self,
        kind: type[_T],
        *,
        given: Mapping[str, object] | None = None,
        defaults: Mapping[str, object] | None = None,
    ) -> _T:
        """Build an instance of the dataclass `kind` from the table's values, each checked against its field.

        Args:
            given: values of fields that the table may not set.
            defaults: values for keys that the table lacks.

        Raises:
            ConfigError: a key is unknown, missing, or of another type, or the dataclass refuses the values.
        """
        try:
            return build(kind, self.values, given=given, defaults=defaults)
        except ValueProblem as problem:
            raise self.error(problem.message, *problem.keys) from problem.__cause__


class Tables:
    """All tables of a parsed engines file (TOML), with the line of each key for messages.

    Args:
        name: name of the file, for messages.

    Raises:
        ConfigError: the text is no TOML, or has tables that no command knows.
    """

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines: Mapping[KeyPath, int] = {}
        try:
            self._values = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as cause:
            raise ConfigError(f"{name}: no TOML: {cause}") from cause
        self._lines = key_lines(text)
        for table, values in self._values.items():
            if table not in (*ARRAYS, *SINGLES):
                known = [f"[[{n}]]" for n in ARRAYS] + [f"[{n}]" for n in SINGLES]
                raise ConfigError(
                    f"{self.place((table,))}: unknown table or key {table!r}; there are {', '.join(known)}"
                )
            is_array = isinstance(values, list) and all(isinstance(row, dict) for row in values)
            if table in ARRAYS and not is_array:
                raise ConfigError(
                    f"{self.place((table,))}: {table} must be written [[{table}]], once for each"
                )
            if table in SINGLES and not isinstance(values, dict):
                raise ConfigError(f"{self.place((table,))}: {table} must be written [{table}], once")

    def rows(self, table: str) -> list[TableRow]:
        """Return the tables of an array in the engines file, such as `[[replica]]`, in order; empty if there
        are none.
        """
        rows = self._values.get(table, [])
        return [TableRow(self, (table, index), values) for index, values in enumerate(rows)]

    def one(self, table: str) -> TableRow | None:
        """Return a table that the engines file has at most once, such as `[machine]`; None if it is not
        there.
        """
        return TableRow(self, (table,), self._values[table]) if table in self._values else None

    def place(self, path: KeyPath) -> str:
        """Return where the key at `path` stands in the engines file, as "file:line"; the line of the nearest
        table around it if the key is not there.
        """
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self._name}:{self._lines[path]}" if path else self._name
