"""The tables of the judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.programs.compared import ComparedPrograms, FigureOf
from benchmarks.programs.contestants import ARRIVAL, BEFORE, CLAIRVOYANT, OURS
from benchmarks.programs.work import BATCH, RAG
from benchmarks.report import Row, Value

MEANS = "mean latency: arrival order over each"
SLOWDOWNS = "mean slowdown: arrival order over each"
TAILS = "95th and 99th percentile: arrival order over each"
SECONDS = "mean seconds of a program"
KINDS = "kinds of programs"
DEADLINES = "share of deadlines missed"
TENANTS = "95th percentile of a tenant beside bursts of another, over having its share alone"

SHARE = "half the speed"
"""Share of `SHARES` for which there is a goal."""

_TAIL_CONTESTANTS = (BEFORE, OURS, CLAIRVOYANT)
_KIND_CONTESTANTS = (ARRIVAL, BEFORE, OURS, CLAIRVOYANT)


def all_rows(found: Sequence[ComparedPrograms]) -> list[Row]:
    """Return the rows of all tables."""
    rows = [_ratio_row(MEANS, one, lambda figures: figures.mean_s) for one in found]
    rows += [_ratio_row(SLOWDOWNS, one, lambda figures: figures.slowdown) for one in found]
    rows += [_tail_row(one) for one in found]
    rows += [row for one in found for row in _tenant_rows(one)]
    rows += [row for one in found for row in _deadline_rows(one)]
    rows += [_seconds_row(one) for one in found]
    return [*rows, *(row for one in found for row in _kind_rows(one))]


def has_deadlines(one: ComparedPrograms, kind: str = "") -> bool:
    """Return whether programs of a kind, or those that count, have deadlines."""
    return kind in one.by_seed[0][ARRIVAL] and one.by_seed[0][ARRIVAL][kind].missed is not None


def missed(one: ComparedPrograms, contestant: str, kind: str = "") -> float:
    """Return the share of deadlines that a contestant misses over all seeds."""
    counted = [seed[contestant][kind] for seed in one.by_seed]
    total = sum(figures.count for figures in counted)
    return sum((figures.missed or 0.0) * figures.count for figures in counted) / total


def beside_over_alone(one: ComparedPrograms, contestant: str, share: str = SHARE) -> list[float]:
    """Return the p95 of the steady tenant over that of having its share alone, for each seed."""
    pairs = zip(one.by_seed, one.alone_p95_s[share], strict=True)
    return [seed[contestant][RAG].p95_s / alone_s for seed, alone_s in pairs]


def _ratio_row(table: str, one: ComparedPrograms, figure: FigureOf) -> Row:
    values: dict[str, Value] = {
        name: median(one.ratios(name, figure)) for name in one.contestants if name != ARRIVAL
    }
    values["ours, by seed"] = _spread(one.ratios(OURS, figure))
    if one.counts_for_shares(figure):
        shares = one.shares(figure)
        values |= {"ours wins of it": median(shares), "of it, by seed": _spread(shares)}
    return Row(table, one.name, values, "simulated")


def _tail_row(one: ComparedPrograms) -> Row:
    values: dict[str, Value] = {}
    for percent, figure in _TAILS.items():
        for name in filter(one.contestants.__contains__, _TAIL_CONTESTANTS):
            values[f"{name}, {percent}"] = median(one.ratios(name, figure))
        values[f"ours by seed, {percent}"] = _spread(one.ratios(OURS, figure))
    return Row(TAILS, one.name, values, "simulated")


_TAILS: dict[str, FigureOf] = {"p95": lambda figures: figures.p95_s, "p99": lambda figures: figures.p99_s}


def _tenant_rows(one: ComparedPrograms) -> Iterator[Row]:
    for share, alone_s in one.alone_p95_s.items():
        values: dict[str, Value] = {"alone_p95_s": median(alone_s)}
        values |= {name: median(beside_over_alone(one, name, share)) for name in one.contestants}
        values["ours, by seed"] = _spread(beside_over_alone(one, OURS, share))
        yield Row(TENANTS, f"{one.name}, {share}", values, "simulated")


def _deadline_rows(one: ComparedPrograms) -> Iterator[Row]:
    for kind, name in (("", one.name), (BATCH, f"{one.name}, windows of offline work")):
        if has_deadlines(one, kind):
            values: dict[str, Value] = {each: missed(one, each, kind) for each in one.contestants}
            yield Row(DEADLINES, name, values, "simulated")


def _seconds_row(one: ComparedPrograms) -> Row:
    values: dict[str, Value] = {
        name: one.of(name, lambda figures: figures.mean_s) for name in one.contestants
    }
    return Row(SECONDS, one.name, {"mix": one.mix, "load": one.load, **values}, "simulated")


def _kind_rows(one: ComparedPrograms) -> Iterator[Row]:
    for kind in one.kinds:
        for name in filter(one.contestants.__contains__, _KIND_CONTESTANTS):

            def of(figure: FigureOf, name: str = name, kind: str = kind) -> float:
                return one.of(name, figure, kind)

            values: dict[str, Value] = {
                "mean_s": of(lambda figures: figures.mean_s),
                "p50_s": of(lambda figures: figures.p50_s),
                "p95_s": of(lambda figures: figures.p95_s),
                "p99_s": of(lambda figures: figures.p99_s),
                "slowdown": of(lambda figures: figures.slowdown),
                "tokens_per_s": of(lambda figures: figures.tokens_per_s),
                "hits": of(lambda figures: figures.hits),
                "longest_wait_s": of(lambda figures: figures.longest_wait_s),
            }
            if one.by_seed[0][name][kind].missed is not None:
                values["missed"] = of(lambda figures: figures.missed or 0.0)
            yield Row(KINDS, f"{one.name}, {kind}, {name}", values, "simulated")


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"
