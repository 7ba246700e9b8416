"""Reads measured steps from a CSV file.

A row has the fields of `StepShape` and `seconds`. It may also have `forward_s`, `preparation_s`, `sampling_s`
and `host_s`, which must add up to `seconds`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from stretto.costs.fit import PARTS, MeasuredStep
from stretto.costs.shape import StepShape
from stretto.model.errors import DocumentError
from stretto.model.wording import why_unreadable

SIZES = StepShape._fields
_SLACK = 0.02
_LEAST_S, _MOST_S = 1e-9, 1e6
_MOST_TOKENS = 10**15


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the rows of a CSV file, gzipped or not, each with its line number.

    Raises:
        DocumentError: the file cannot be read, a column is missing or there twice, or a row has too few or
            too many cells.
    """
    try:
        with path.open("rb") as raw:
            plain = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            file = io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
            reader = csv.DictReader(file)
            found = list(reader.fieldnames or ())
            if missing := [name for name in columns if name not in found]:
                raise DocumentError(f"{path}: there is no column {', '.join(missing)}")
            if twice := [name for name in columns if found.count(name) > 1]:
                raise DocumentError(f"{path}: there are two columns {', '.join(twice)}")
            for row in reader:
                if None in row or None in row.values():
                    raise DocumentError(
                        f"{path}, row {reader.line_num}: the number of cells is not that of columns"
                    )
                yield reader.line_num, row
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DocumentError(f"{path}: {why_unreadable(error)}") from error


def read_steps(path: Path) -> list[MeasuredStep]:
    """Read all measured LLM steps from a CSV file.

    Raises:
        DocumentError: a row is wrong; the message names the file, the row and the reason.
    """
    steps = []
    for line, row in read_rows(path, (*SIZES, "seconds")):
        steps.append(checked_step(path, line, lambda row=row: _step(row)))  # type: ignore[misc]
    if not steps:
        raise DocumentError(f"{path}: the file has no steps")
    return steps


def _step(row: Mapping[str, str]) -> MeasuredStep:
    shape = StepShape(**{name: int(row[name]) for name in SIZES})
    named = {part: row.get(f"{part}_s") for part in PARTS}
    parts = {part: float(value) for part, value in named.items() if value}
    if parts and len(parts) < len(PARTS):
        raise ValueError(f"some parts are missing: there are only {', '.join(parts)}")
    return measured_step(shape, float(row["seconds"]), parts or None)


def checked_step(path: Path, line: int, make: Callable[[], MeasuredStep]) -> MeasuredStep:
    """Call `make` to build the measured step of a row of a file, and return it; turn a ValueError or
    TypeError into a DocumentError that names the row.
    """
    try:
        return make()
    except (ValueError, TypeError, KeyError) as error:
        raise DocumentError(f"{path}, row {line}: {error}") from error


def measured_step(shape: StepShape, seconds: float, parts: Mapping[str, float] | None = None) -> MeasuredStep:
    """Build a measured LLM step from its sizes and times, after checking that these are possible.

    Raises:
        ValueError: a number is impossible; the message says which and why.
    """
    times = {"seconds": seconds, **(parts or {})}
    for name, value in times.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value}")
    if not _LEAST_S <= seconds <= _MOST_S:
        raise ValueError(f"seconds is {seconds:g}, which is impossible for a step")
    if parts and abs(sum(parts.values()) - seconds) > _SLACK * seconds:
        raise ValueError(f"the parts add up to {sum(parts.values()):g} s, and the step took {seconds:g} s")
    if min(getattr(shape, name) for name in SIZES) < 0:
        raise ValueError(f"a size is negative: {shape}")
    if max(shape) > _MOST_TOKENS:
        raise ValueError(f"a size is too large for one step: {shape}")
    if not shape.num_prefills + shape.num_decodes:
        raise ValueError("the step has neither prefills nor decodes")
    for count, total, longest, what in (
        (shape.num_prefills, shape.prefill_tokens, shape.max_prefill_tokens, "prefills"),
        (shape.num_decodes, shape.context_tokens, shape.max_context_tokens, "decodes"),
    ):
        if not longest <= total <= count * longest or total < count:
            raise ValueError(f"{count} {what} of at most {longest} tokens cannot have {total} tokens")
    if shape.prefill_pairs < shape.prefill_tokens or (shape.prefill_pairs and not shape.num_prefills):
        raise ValueError(f"prefills of {shape.prefill_tokens} tokens cannot have {shape.prefill_pairs} pairs")
    return MeasuredStep(shape, seconds, parts)
