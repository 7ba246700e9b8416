"""Costs of the engines of a recorded run, fitted to its spans."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from stretto.costs.fit_profile import LEAST_S, fit_profile
from stretto.model.profile import Profile
from stretto.sim.driver import BatchCost
from stretto.trace.recorded_run import (
    RecordedRun,
    RecordedSpan,
)
from stretto.trace.recorded_sizes import num_chars

TimedSpan: TypeAlias = tuple[float, RecordedSpan]
"""Start of a span in the run's time, and the span."""


def spans_by_engine(run: RecordedRun) -> dict[str, list[TimedSpan]]:
    """Return the spans of a run by the engine that they ran on."""
    found: dict[str, list[TimedSpan]] = defaultdict(list)
    for query in run.queries:
        for span in query.spans:
            found[span.engine].append((query.arrival_s + span.start_s, span))
    return found


def _batches(spans: Iterable[TimedSpan]) -> list[RecordedSpan]:
    """Return one span of each batch: queries that share a batch have the same start on the same instance."""
    return list({(round(start_s, 6), span.instance): span for start_s, span in spans}.values())


def fit_batch_spans(spans: Iterable[TimedSpan]) -> Profile | None:
    """Fit a profile to the times of batches by their units; None if there are none."""
    return _fit([(max(1, s.num_units), s.end_s - s.start_s) for s in _batches(spans)])


def batch_costs(run: RecordedRun) -> dict[str, BatchCost]:
    """Return the costs of batches that profiles do not tell, by engine. Unlike replicas have none."""
    spans = spans_by_engine(run)
    alike = [f.name for f in run.engines if f.kind == "batch" and len(set(f.replicas)) == 1]
    costs = {name: _batch_cost(spans[name]) for name in alike}
    return {name: cost for name, cost in costs.items() if cost is not None}


def _batch_cost(spans: Iterable[TimedSpan]) -> BatchCost | None:
    """Return the cost by characters read, if they predict the time of a batch better than its units."""
    batches = [span for span in _batches(spans) if span.end_s - span.start_s >= LEAST_S]
    by_chars = _fit([(max(1, s.num_chars), s.end_s - s.start_s) for s in batches])
    by_units = _fit([(max(1, s.num_units), s.end_s - s.start_s) for s in batches])
    if by_chars is None or by_units is None:
        return None

    def error(profile: Profile, sizes: Iterable[int]) -> float:
        times = zip(batches, sizes, strict=True)
        return sum(abs(profile.batch_s(size) / (s.end_s - s.start_s) - 1) for s, size in times)

    if error(by_units, [s.num_units for s in batches]) <= error(by_chars, [s.num_chars for s in batches]):
        return None
    return lambda batch: by_chars.batch_s(num_chars(batch.tasks))


def _fit(samples: Sequence[tuple[int, float]]) -> Profile | None:
    samples = [(units, seconds) for units, seconds in samples if seconds >= LEAST_S]
    if not samples:
        return None
    if len({units for units, _ in samples}) < 2:
        return Profile(base_s=statistics.fmean(seconds for _, seconds in samples))
    return fit_profile([units for units, _ in samples], [seconds for _, seconds in samples])


def fit_llm_spans(spans: Iterable[TimedSpan]) -> Profile | None:
    """Fit prompts by their uncached tokens, up to the first piece; then take the median time for a token.

    A list's first piece is its first item, and that of a whole answer is all of it. The time of their prompts
    is what is left without their tokens' time.
    """
    listed = [span for _, span in spans]
    whole = [s for s in listed if s.num_output > 1 and s.first_s is not None and s.end_s > s.first_s]
    per_output_s = statistics.median(
        [(s.end_s - (s.first_s or 0.0)) / (s.num_output - 1) for s in whole if len(s.sizes) == 1] or [0.0]
    )
    prompts = []
    for span in listed:
        missing = max(1, span.num_units - span.num_cached)
        seconds = span.end_s - span.start_s - per_output_s * span.num_output
        is_text = span.num_output > 0 and span.first_s is not None and len(span.sizes) == 1
        if is_text and span.first_s is not None and (span.first_s < span.end_s or span.num_output == 1):
            seconds = span.first_s - span.start_s
        prompts.append((missing, seconds))
    fitted = _fit(prompts)
    return None if fitted is None else replace(fitted, per_output_s=per_output_s)
