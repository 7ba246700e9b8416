"""Readers of published traces of LLM requests, in the published formats: .csv, .jsonl, also .gz.

What does not fit is refused before anything is simulated. The error names the file, the row (counted from 1
in the data, headings not counted) or the line, and the reason.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from stretto.trace.lines import TraceError, json_lines, text_lines

T = TypeVar("T")

MOONCAKE_BLOCK_TOKENS = 512
_MOST = 10**9  # of tokens, and of seconds: no trace has as many


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One LLM request of a published trace: when it arrives, and how long its prompt and its output are.

    Attributes:
        arrival_s: seconds since the trace began.
        blocks: ids of the prompt's pieces of 512 tokens (the last may be shorter): equal ids in equal places
            are equal prefixes. An empty tuple shares nothing with others.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_azure(path: Path) -> list[TraceRequest]:
    """Read the requests of one of the traces of LLM requests that Azure published in 2023 ("code" or "conv").

    The file has the published columns, or ours, with `arrival_s` in seconds.

    Source: Splitwise (ISCA 2024), AzurePublicDataset.
    """
    columns = {"arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}
    requests: list[TraceRequest] = []
    first: datetime | None = None
    for row in _csv_rows(path, columns):
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
    return _not_empty(path, requests)


def read_mooncake(path: Path) -> list[TraceRequest]:
    """Read LLM requests from a trace in Mooncake's format: lines of JSON with `timestamp` (ms),
    `input_length`, `output_length` and `hash_ids`.

    Source: Mooncake (FAST 2025).
    """
    requests: list[TraceRequest] = []
    for row in _json_rows(path):
        tokens = row.count("input_length")
        ids = row.fields.get("hash_ids")
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise row.error("hash_ids must be a list of whole numbers from 0 on")
        if not (len(ids) - 1) * MOONCAKE_BLOCK_TOKENS < tokens <= len(ids) * MOONCAKE_BLOCK_TOKENS:
            raise row.error(f"{len(ids)} hash_ids for {tokens} tokens; one for each {MOONCAKE_BLOCK_TOKENS}")
        arrival_s = row.seconds("timestamp") / 1000
        requests.append(TraceRequest(arrival_s, tokens, row.count("output_length", least=0), tuple(ids)))
        row.check_order(requests)
    return _not_empty(path, requests)


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """Read the lengths of LLM requests, as (prompt tokens, output tokens) pairs, from a CSV file without
    times, such as that of arXiv summarisation.
    """
    columns = {"prompt_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}
    pairs = [
        (row.count("prompt_tokens"), row.count("output_tokens", least=0)) for row in _csv_rows(path, columns)
    ]
    return _not_empty(path, pairs)


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    number: int
    fields: Mapping[str, object]
    is_renamed: bool = False
    unit: str = "row"

    def error(self, reason: str) -> TraceError:
        return TraceError(f"{self.path}, {self.unit} {self.number}: {reason}")

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
            raise self.error(f"arrives at {at_s:g} s, before the {self.unit} above it ({before_s:g} s)")

    def _number(self, name: str) -> float:
        value = self.fields.get(name)
        if value is None or value == "":
            raise self.error(f"there is no {name}")
        try:
            number = float(value) if isinstance(value, str | int | float) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if math.isnan(number) or math.isinf(number) or isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, not a number")
        return number


def _csv_rows(path: Path, columns: Mapping[str, str]) -> Iterator[_Row]:
    """Yield rows with the wanted columns, whether the file uses our names or the published ones."""
    reader = csv.DictReader(text_lines(path))
    try:
        found = list(reader.fieldnames or [])
    except csv.Error as error:
        raise TraceError(f"{path}, row 0: {error}") from error
    is_renamed = not set(columns) <= set(found) and set(columns.values()) <= set(found)
    if not is_renamed and (missing := [name for name in columns if name not in found]):
        raise TraceError(f"{path}, row 0: no column {', '.join(missing)}; there are {', '.join(found)}")
    for number, fields in enumerate(_parsed(path, reader), 1):
        if is_renamed:
            fields = {name: fields[theirs] for name, theirs in columns.items()}
        yield _Row(path, number, fields, is_renamed)


def _parsed(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[str, str]]:
    number = 1
    try:
        for fields in reader:
            yield fields
            number += 1
    except csv.Error as error:
        raise TraceError(f"{path}, row {number}: {error}") from error


def _json_rows(path: Path) -> Iterator[_Row]:
    for line in json_lines(path):
        yield _Row(path, line.number, line.fields, unit="line")


def _not_empty(path: Path, rows: list[T]) -> list[T]:
    if not rows:
        raise TraceError(f"{path}, row 0: there are no rows")
    return rows
