"""The reader of Azure's published traces of LLM requests: CSV files, also .gz.

What does not fit is refused. The error names the file, the row (counted from 1 in the data, headings not
counted) and the reason.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stretto.trace.lines import TraceError, text_lines

_COLUMNS = {"arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}
"""Names of the columns: ours, and those of the published files."""
_MOST = 10**9  # of tokens, and of seconds: no trace has as many


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One LLM request of a published trace: when it arrives, in seconds since the trace began, and how long
    its prompt and its output are.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


def read_azure(path: Path) -> list[TraceRequest]:
    """Read the requests of one of the traces of LLM requests that Azure published in 2023 ("code" or "conv").

    The file has the published columns, or ours, with `arrival_s` in seconds.

    Source: Splitwise (ISCA 2024), AzurePublicDataset.
    """
    requests: list[TraceRequest] = []
    first: datetime | None = None
    for row in _rows(path):
        if row.is_renamed:
            at = row.timestamp("arrival_s")
            first = first or at
            arrival_s = (at - first).total_seconds()
        else:
            arrival_s = row.seconds("arrival_s")
        requests.append(
            TraceRequest(arrival_s, row.count("prompt_tokens"), row.count("output_tokens", least=0))
        )
        row.check_order(requests)
    if not requests:
        raise TraceError(f"{path}, row 0: there are no rows")
    return requests


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    number: int
    fields: Mapping[str, str | None]
    is_renamed: bool

    def error(self, reason: str) -> TraceError:
        return TraceError(f"{self.path}, row {self.number}: {reason}")

    def count(self, name: str, *, least: int = 1) -> int:
        value = self._number(name)
        if value != int(value) or not least <= value <= _MOST:
            raise self.error(f"{name} is {self.fields[name]}, not a whole number from {least} to {_MOST}")
        return int(value)

    def seconds(self, name: str) -> float:
        value = self._number(name)
        if not 0 <= value <= 1000 * _MOST:
            raise self.error(f"{name} is {self.fields[name]}: it must be a time of at least 0")
        return value

    def timestamp(self, name: str) -> datetime:
        try:
            at = datetime.fromisoformat(str(self.fields[name]))
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        except ValueError as error:
            raise self.error(f"{name} is {self.fields[name]!r}, not a date and time") from error

    def check_order(self, requests: list[TraceRequest]) -> None:
        """Check that the last request does not arrive before the one before it."""
        if len(requests) > 1 and requests[-1].arrival_s < requests[-2].arrival_s:
            at_s, before_s = requests[-1].arrival_s, requests[-2].arrival_s
            raise self.error(f"arrives at {at_s:g} s, before the row above it ({before_s:g} s)")

    def _number(self, name: str) -> float:
        value = self.fields.get(name)
        if not value:
            raise self.error(f"there is no {name}")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"{name} is {value!r}, not a number")
        return number


def _rows(path: Path) -> Iterator[_Row]:
    """Yield the rows with our names of the columns, whether the file uses them or the published ones."""
    reader = csv.DictReader(text_lines(path))
    number = 0
    try:
        found = set(reader.fieldnames or ())
        is_renamed = not set(_COLUMNS) <= found and set(_COLUMNS.values()) <= found
        if not is_renamed and (missing := [name for name in _COLUMNS if name not in found]):
            there = ", ".join(reader.fieldnames or ())
            raise TraceError(f"{path}, row 0: no column {', '.join(missing)}; there are {there}")
        number = 1
        for fields in reader:
            if is_renamed:
                fields = {name: fields[theirs] for name, theirs in _COLUMNS.items()}
            yield _Row(path, number, fields, is_renamed)
            number += 1
    except csv.Error as error:
        raise TraceError(f"{path}, row {number}: {error}") from error
