"""Figures of runs, by kind of program, and ratios to arrival order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.programs.arena import Lone
from benchmarks.programs.simulated import ProgramRun
from benchmarks.programs.work import MixedProgram
from stretto.trace.summary import quantile

LEAST_GAIN = 1.05
"""Ratio of arrival order to the clairvoyant below which no share is counted."""


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Figures of the programs of one kind in one run, or of all but offline ones.

    Attributes:
        slowdown: mean of latency over the latency alone.
        missed: share of deadlines that were missed; None without deadlines.
        tokens_per_s: tokens that were generated, for each second of the run.
        hits: share of prompt tokens that were found in the caches.
        longest_wait_s: longest time from a query's submission to the admission of its first call.
    """

    count: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    slowdown: float
    missed: float | None
    tokens_per_s: float
    hits: float
    longest_wait_s: float


def figures_of(run: ProgramRun, lone: Lone, programs: Sequence[MixedProgram]) -> KindFigures:
    """Return the figures of those of some programs that count and were in the run."""
    chosen = [one for one in programs if one.is_counted and one.name in run.times]
    times = [run.times[one.name] for one in chosen]
    latencies_s = [one.latency_s for one in times]
    queries = {query.name for one in chosen for query in one.queries}
    usages = [usage for (query, _, _), usage in run.usages.items() if query in queries]
    length_s = max(one.end_s for one in run.times.values()) - min(one.at_s for one in run.times.values())
    with_deadline = [one for one in chosen if (one.deadline, one.window) != (None, None)]
    num_missed = sum(run.times[one.name].has_failed for one in with_deadline)
    num_prompt = sum(usage.num_prompt_tokens for usage in usages)
    return KindFigures(
        count=len(chosen),
        mean_s=fmean(latencies_s),
        p50_s=quantile(latencies_s, 0.5),
        p95_s=quantile(latencies_s, 0.95),
        p99_s=quantile(latencies_s, 0.99),
        slowdown=fmean(run.times[one.name].latency_s / lone.latency_s[one.name] for one in chosen),
        missed=num_missed / len(with_deadline) if with_deadline else None,
        tokens_per_s=sum(usage.num_output_tokens for usage in usages) / length_s,
        hits=sum(usage.num_cached_tokens for usage in usages) / num_prompt if num_prompt else 0.0,
        longest_wait_s=max((run.waits_s[name] for name in queries if name in run.waits_s), default=0.0),
    )


def by_kind(run: ProgramRun, lone: Lone, programs: Sequence[MixedProgram]) -> Mapping[str, KindFigures]:
    """Return the figures of each kind, under "" those of all programs but offline ones."""
    found = {"": figures_of(run, lone, [one for one in programs if not one.is_offline])}
    for kind in dict.fromkeys(one.kind for one in programs if one.is_counted):
        found[kind] = figures_of(run, lone, [one for one in programs if one.kind == kind])
    return found


def share_of_gain(arrival: float, ours: float, clairvoyant: float) -> float | None:
    """Return the share of the clairvoyant's gain over arrival order; None where that gains too little."""
    possible = arrival / clairvoyant
    return None if possible < LEAST_GAIN else (arrival / ours - 1) / (possible - 1)
