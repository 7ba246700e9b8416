"""Reports on where the time of `stretto ask` went: traces in files, and a table."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.apps.plan_cache import PlanCache
from stretto.apps.vocabulary import DEFAULT
from stretto.cli.ask.questions import Questions
from stretto.cli.indexing import NAME, indexing_template
from stretto.cli.terminal import note
from stretto.cli.verbosity import shows_notes
from stretto.model.deployment import Deployment
from stretto.runtime.conditions import idle_conditions
from stretto.trace.chrome import chrome_trace
from stretto.trace.html import write_trace
from stretto.trace.recorder import Recorder
from stretto.trace.summary import summarise


def write_traces(
    page: Path, chrome: Path, run: Questions, engines: Sequence[Deployment], errors: Console
) -> bool:
    """Write traces of where the time went: an HTML page, and a file in Chrome's trace format.

    Returns whether that succeeded. A failure is printed, not raised, so that it hides no earlier error.
    """
    idle = idle_conditions(engines)
    plan_cache = PlanCache(idle.profiles, idle=idle)
    passes = DEFAULT.select_passes(run.passes)
    plans = [plan_cache.plan(run.template, run.configuration, passes)]
    if run.indexes_first:
        configuration = {NAME: run.configuration.get(NAME, {})}
        plans.insert(0, plan_cache.plan(indexing_template(run.template), configuration, passes))
    try:
        write_trace(page, run.recorder, plans)
        chrome.write_text(json.dumps(chrome_trace(run.recorder)))
    except OSError as error:
        errors.print(
            f"[bold red]UserError[/]: --trace {escape(os.fspath(page))}: {error.strerror}", soft_wrap=True
        )
        return False
    note(errors, f"wrote {escape(os.fspath(page))} and {escape(os.fspath(chrome))}")
    return True


def print_times(recorder: Recorder, whole_s: float, errors: Console) -> None:
    """Print a table of how busy each engine was to `errors`, a console on stderr, unless it is to be quiet.

    Args:
        whole_s: seconds of the whole run, in which engines were started too.
    """
    if not shows_notes():
        return
    summary = summarise(recorder)
    table = Table("engine", box=None, pad_edge=False, style="dim")
    for heading in ("batches", "items", "busy s", "share"):
        table.add_column(heading, justify="right")
    for row in sorted(summary.engines, key=lambda row: -row.busy_s):
        table.add_row(
            row.engine,
            str(row.num_batches),
            str(row.num_items),
            f"{row.busy_s:.2f}",
            f"{row.share:.0%}",
        )
    loading_s = max(0.0, whole_s - summary.wall_s)
    note(errors, f"{whole_s:.2f} s in all: {loading_s:.2f} s to load, {summary.wall_s:.2f} s to answer")
    errors.print(table)
