"""The table and the sentences that show what a replay of agents measured."""

from __future__ import annotations

import sys
from dataclasses import astuple

from rich.console import Console
from rich.table import Table

from stretto.cli.verbosity import shown
from stretto.trace.agents.load_report import LoadSummary

_MOST_ERRORS = 5


def print_load_report(report: LoadSummary) -> None:
    """Print the percentiles of a replay, its throughput, and its errors."""
    console = Console(emoji=False)
    table = Table("seconds", box=None, pad_edge=False)
    for heading in ("mean", "p50", "p90", "p99", "longest"):
        table.add_column(heading, justify="right")
    for name, spread in (
        ("first token", report.first_token),
        ("per token", report.per_token),
        ("end to end", report.end_to_end),
        ("job", report.job),
        ("sent too late by", report.lateness),
    ):
        if spread is not None:
            table.add_row(name, *(f"{seconds:.4f}" for seconds in astuple(spread)))
    if table.row_count:
        console.print(table)
    cached = report.cached_tokens / report.prompt_tokens if report.prompt_tokens else 0.0
    lines = [
        f"{report.answered} of {report.requests} requests answered, {report.failed} failed, "
        f"{report.not_ended} not sent or not ended",
        f"{report.jobs_done} of {report.jobs} jobs done in {report.duration_s:.2f} s: "
        f"{report.jobs_per_hour:.0f} jobs per hour",
        f"{report.prompt_tokens} prompt tokens, {cached:.0%} of them cached; {report.output_tokens} output "
        "tokens",
        *(f"{num} x {error}" for error, num in list(report.errors.items())[:_MOST_ERRORS]),
    ]
    for line in lines:
        console.print(shown(line, sys.stdout), markup=False, highlight=False, soft_wrap=True)
