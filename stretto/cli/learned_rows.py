"""A table of what `stretto serve` has learned of programs, for people."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from stretto.cli.saved import learned_file
from stretto.cli.verbosity import aligned
from stretto.costs.learned_work import LearnedWork

_MOST = 20
"""Rows for one engine."""
_HEADS = ("place", "kind of program", "work so far", "seen", "more: median", "p95", "index")


def learned_text(engines: Collection[str]) -> str:
    """Return tables of the kinds of programs that these engines have served, in the order in which they go:
    the least index first. Empty if nothing was learned.

    Raises:
        ConfigError: the file of what was learned is damaged.
    """
    file = learned_file()
    kept = {} if file is None else file.read_all()
    return "".join(_table(key, work) for key, work in kept.items() if key.partition(":")[0] in engines)


def _table(key: str, learned: LearnedWork) -> str:
    """Return the table of one engine; empty if it has no rows."""
    found = sorted(learned.rows(), key=lambda row: row.index_s)
    rows = [_HEADS]
    for place, row in enumerate(islice(found, _MOST), 1):
        seconds = (row.median_s, row.p95_s, row.index_s)
        work = [f"{value:.3g} s" for value in seconds]
        so_far = f"{row.num_queries} queries" if row.num_queries else f"{row.done_s:.2g} s"
        rows.append((str(place), row.kind, so_far, f"{row.num:.0f}", work[0], work[1], work[2]))
    lines = aligned(rows)
    if len(found) > _MOST:
        lines.append(f"and {len(found) - _MOST} more")
    return "".join(f"  {line}\n" for line in (key, *lines)) if found else ""
