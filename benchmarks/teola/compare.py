"""Compares schemes at several loads: the paper's Figures 8 to 10, apps that share engines, and bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Protocol, TypeVar

from benchmarks.common.latency_bound import least_mean_s
from benchmarks.common.query_bound import QueryBound, lower_bound
from benchmarks.teola.schemes import Scheme
from benchmarks.teola.simulate import Ran, Testbed, run
from benchmarks.teola.workload import PAUSE_S, DatasetSizes, QueryArrival, queries, templates
from stretto.trace.summary import quantile

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload and its engines: `apps` at the same time, about `dataset` or about all of their sets in
    turn."""

    testbed: Testbed
    apps: tuple[str, ...]
    num_queries: int
    seeds: tuple[int, ...]
    dataset: str | None = None

    def asked(self, known: Mapping[str, DatasetSizes], per_s: float, seed: int) -> list[QueryArrival]:
        """Queries of one run in order of arrival, with an equal share of each app."""
        each = self.num_queries // len(self.apps)
        asked = [
            query
            for app in self.apps
            for query in queries(app, known, each, per_s / len(self.apps), seed, dataset=self.dataset)
        ]
        if not per_s:  # one query at a time, from all apps in turn
            asked = [
                replace(query, at_s=query.at_s + PAUSE_S * place // each) for place, query in enumerate(asked)
            ]
        return sorted(asked, key=lambda query: query.at_s)


@dataclass(frozen=True, slots=True)
class Compared:
    """Latencies of schemes at one load.

    Attributes:
        share: load as a share of the busiest engine's capacity without wasted work; 0 is one query at a time.
        means_s: mean latencies of each scheme, one for each seed.
        bound_s: lower bound of any scheme's mean latency.
        alone_s: lower bound of the mean query alone.
        overloaded: schemes that cannot bear the load: after the last arrival, every run needs half as long
            again for the waiting work. Their means grow with the length of the run and say little.
    """

    share: float
    per_s: float
    means_s: Mapping[str, Sequence[float]]
    p99_s: Mapping[str, float]
    bound_s: float
    alone_s: float
    overloaded: frozenset[str]

    def mean_s(self, scheme: str) -> float:
        """Mean latency of a scheme over all seeds."""
        return fmean(self.means_s[scheme])

    def speed_up(self, scheme: str, over: str) -> float:
        """Ratio of the mean latencies of `over` and of `scheme`."""
        return self.mean_s(over) / self.mean_s(scheme)

    def speed_ups(self, scheme: str, over: str) -> list[float]:
        """Speed-up for each seed."""
        return [b / a for a, b in zip(self.means_s[scheme], self.means_s[over], strict=True)]

    def spread(self, scheme: str, over: str) -> str:
        """Text with the least and the greatest speed-up of the seeds."""
        seeds = self.speed_ups(scheme, over)
        return f"{min(seeds):.2f}-{max(seeds):.2f}"


class RunAll(Protocol):
    """A function as `map`: it calls another one with each value, here or in other processes."""

    def __call__(self, call: Callable[[_In], _Out], given: Iterable[_In], /) -> Iterable[_Out]: ...


def compare(
    setting: Scenario,
    known: Mapping[str, DatasetSizes],
    schemes: Sequence[Scheme],
    shares: Sequence[float],
    run_all: RunAll = map,
) -> list[Compared]:
    """Run every scheme at every load, and check that all answers are equal and no latency beats its bound.

    `run_all` computes the bounds of each seed, and then runs each seed at each load.
    """
    bounds = list(run_all(partial(_bounds, setting, known), setting.seeds))
    capacity_per_s = _capacity_per_s([bound for of_seed in bounds for bound in of_seed.values()])
    loads = [
        _Load(share, share * capacity_per_s, seed, of_seed)
        for share in shares
        for seed, of_seed in zip(setting.seeds, bounds, strict=True)
    ]
    found = list(run_all(partial(_run_load, setting, known, schemes), loads))
    alone_s = fmean(bound.seconds for of_seed in bounds for bound in of_seed.values())
    return [
        _joined(
            [one for load, one in zip(loads, found, strict=True) if load.share == share],
            share,
            capacity_per_s,
            alone_s,
        )
        for share in shares
    ]


@dataclass(frozen=True, slots=True)
class _Load:
    """One seed's queries at one load, with their bounds."""

    share: float
    per_s: float
    seed: int
    bounds: Mapping[str, QueryBound]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen of one seed at one load: latencies and backlog of each scheme, and the bound of their
    mean.
    """

    latencies_s: Mapping[str, Sequence[float]]
    backlogs: Mapping[str, float]
    least_s: float


def _bounds(setting: Scenario, known: Mapping[str, DatasetSizes], seed: int) -> dict[str, QueryBound]:
    graphs = {app: template.lower({}) for app, template in templates().items()}
    engines, prices = setting.testbed.engines(), setting.testbed.prices
    return {
        query.name: lower_bound(graphs[query.app], query.inputs, engines, is_warm=True, prices=prices)
        for query in setting.asked(known, 0.0, seed)
    }


def _capacity_per_s(bounds: Sequence[QueryBound]) -> float:
    """Queries per second that the busiest engine can bear, by its least work for the mean query."""
    work_s: dict[str, float] = {}
    for bound in bounds:
        for engine, load in bound.loads.items():
            work_s[engine] = work_s.get(engine, 0.0) + load.work_s / len(bounds)
    return 1 / max(work_s.values())


def _run_load(
    setting: Scenario, known: Mapping[str, DatasetSizes], schemes: Sequence[Scheme], load: _Load
) -> _Seen:
    asked = setting.asked(known, load.per_s, load.seed)
    least_s = least_mean_s([query.at_s for query in asked], [load.bounds[query.name] for query in asked])
    latencies_s: dict[str, Sequence[float]] = {}
    backlogs = {}
    for scheme in schemes:
        ran = run(setting.testbed, scheme, asked)
        _check(ran, load.bounds, scheme)
        latencies_s[scheme.name] = ran.every_s
        backlogs[scheme.name] = _backlog(asked, ran, load.bounds)
        assert fmean(ran.every_s) >= least_s - 1e-9, f"{scheme.name} beats the load's bound"
    return _Seen(latencies_s, backlogs, least_s)


def _joined(seeds: Sequence[_Seen], share: float, capacity_per_s: float, alone_s: float) -> Compared:
    """Join what was seen of all seeds at one load."""
    names = list(seeds[0].latencies_s)
    every_s = {name: [latency_s for seen in seeds for latency_s in seen.latencies_s[name]] for name in names}
    return Compared(
        share,
        share * capacity_per_s,
        {name: [fmean(seen.latencies_s[name]) for seen in seeds] for name in names},
        {name: quantile(latencies_s, 0.99) for name, latencies_s in every_s.items()},
        fmean(seen.least_s for seen in seeds),
        alone_s,
        frozenset(name for name in names if min(seen.backlogs[name] for seen in seeds) >= 0.5),
    )


def _backlog(asked: Sequence[QueryArrival], ran: Ran, bounds: Mapping[str, QueryBound]) -> float:
    """Work left at the last arrival, without that query, as a share of the run until then."""
    last = asked[-1]
    end_s = max(query.at_s + ran.latencies_s[query.name] for query in asked)
    return (end_s - last.at_s - bounds[last.name].seconds) / max(last.at_s - asked[0].at_s, 1e-9)


def _check(ran: Ran, bounds: Mapping[str, QueryBound], scheme: Scheme) -> None:
    for name, latency_s in ran.latencies_s.items():
        least_s = bounds[name].seconds
        assert latency_s >= least_s - 1e-9, f"{scheme.name}, {name}: {latency_s} beats {least_s}"
        assert ran.outputs[name] == bounds[name].outputs, f"{scheme.name} answers {name} differently"
