"""Reads measured steps from a CSV file, and draws a small sample of steps.

A row has the fields of `StepShape` and `seconds`. It may also have `forward_s`, `preparation_s`, `sampling_s`
and `host_s`, which must add up to `seconds`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from stretto.costs.fit import PARTS, MeasuredStep
from stretto.costs.shape import StepShape
from stretto.model.errors import DocumentError

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
        raise DocumentError(f"{path}: {error}") from error


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


def sample_steps(steps: Sequence[MeasuredStep], share: float, seed: int = 0) -> list[int]:
    """Choose a varied sample of at most `share` of the measured LLM steps, and return its indices.

    The kinds of steps (prefills of short and long prompts; decodes of short, long and unlike contexts) get
    equal numbers. Within a kind, numbers of sequences are covered, small ones more densely.
    """
    kinds: dict[tuple[object, ...], list[int]] = {}
    for index, step in enumerate(steps):
        kinds.setdefault(_kind(step.shape), []).append(index)
    chosen: set[int] = set()
    budget = int(share * len(steps))
    draw = random.Random(seed)
    ordered = sorted(kinds.items(), key=lambda item: (len(item[1]), str(item[0])))
    for position, (_, indices) in enumerate(ordered):
        quota = min((budget - len(chosen)) // (len(ordered) - position), len(indices))
        chosen.update(_spread(indices, [_num_sequences(steps[i].shape) for i in indices], quota, draw))
    return sorted(chosen)


def _num_sequences(shape: StepShape) -> int:
    return shape.num_prefills + shape.num_decodes


def _kind(shape: StepShape) -> tuple[object, ...]:
    if shape.num_prefills:
        return ("prefill", shape.prefill_tokens > 4 * shape.num_prefills)
    mean = shape.context_tokens / shape.num_decodes
    return ("decode", mean > 4, shape.max_context_tokens > 4 * mean)


def _spread(indices: list[int], sizes: list[int], quota: int, draw: random.Random) -> list[int]:
    """Draw one index from each of up to `quota` ranges of sizes: powers of two, then ranges of equal
    width."""
    if quota < 1:
        return []
    ordered = sorted(zip(sizes, indices, strict=True))
    largest = ordered[-1][0]
    few = [edge for edge in (1, 2, 4, 8, 16) if edge < largest][:quota]
    begin = few[-1] if few else 1
    even = quota - len(few)
    edges = sorted({*few, *(round(begin + (largest - begin) * k / (even + 1)) for k in range(1, even + 1))})
    chosen = []
    for low, high in zip(edges, [*edges[1:], largest + 1], strict=True):
        inside = [index for size, index in ordered if low <= size < high]
        if inside:
            chosen.append(draw.choice(inside))
    return chosen
