"""Compares schemes at several loads: the paper's Figures 8 to 10, apps that share engines, and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.teola.schemes import Scheme
from benchmarks.teola.simulate import Ran, Testbed, run
from benchmarks.teola.workload import PAUSE_S, DatasetSizes, QueryArrival, queries, templates
from stretto.sim.latency_bound import least_mean_s
from stretto.sim.query_bound import Bound, lower_bound
from stretto.trace.summary import quantile


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


def compare(
    setting: Scenario, known: Mapping[str, DatasetSizes], schemes: Sequence[Scheme], shares: Sequence[float]
) -> list[Compared]:
    """Run every scheme at every load, and check that all answers are equal and no latency beats its bound."""
    bounds = {seed: _bounds(setting.testbed, setting.asked(known, 0.0, seed)) for seed in setting.seeds}
    capacity_per_s = _capacity_per_s([bound for of_seed in bounds.values() for bound in of_seed.values()])
    return [_compare(setting, known, schemes, share, share * capacity_per_s, bounds) for share in shares]


def _bounds(testbed: Testbed, asked: Sequence[QueryArrival]) -> dict[str, Bound]:
    graphs = {app: template.lower({}) for app, template in templates().items()}
    engines, prices = testbed.engines(), testbed.prices
    return {
        query.name: lower_bound(graphs[query.app], query.inputs, engines, is_warm=True, prices=prices)
        for query in asked
    }


def _capacity_per_s(bounds: Sequence[Bound]) -> float:
    """Queries per second that the busiest engine can bear, by its least work for the mean query."""
    work_s: dict[str, float] = {}
    for bound in bounds:
        for engine, load in bound.loads.items():
            work_s[engine] = work_s.get(engine, 0.0) + load.work_s / len(bounds)
    return 1 / max(work_s.values())


def _compare(
    setting: Scenario,
    known: Mapping[str, DatasetSizes],
    schemes: Sequence[Scheme],
    share: float,
    per_s: float,
    bounds: Mapping[int, Mapping[str, Bound]],
) -> Compared:
    means_s: dict[str, list[float]] = {scheme.name: [] for scheme in schemes}
    backlogs: dict[str, list[float]] = {scheme.name: [] for scheme in schemes}
    every_s: dict[str, list[float]] = {scheme.name: [] for scheme in schemes}
    least_s = []
    for seed in setting.seeds:
        asked = setting.asked(known, per_s, seed)
        least_s.append(least_mean_s([query.at_s for query in asked], [bounds[seed][q.name] for q in asked]))
        for scheme in schemes:
            ran = run(setting.testbed, scheme, asked)
            _check(ran, bounds[seed], scheme)
            means_s[scheme.name].append(fmean(ran.every_s))
            every_s[scheme.name] += ran.every_s
            backlogs[scheme.name].append(_backlog(asked, ran, bounds[seed]))
            assert means_s[scheme.name][-1] >= least_s[-1] - 1e-9, f"{scheme.name} beats the load's bound"
    p99_s = {name: quantile(latencies_s, 0.99) for name, latencies_s in every_s.items()}
    alone_s = fmean(bound.seconds for of_seed in bounds.values() for bound in of_seed.values())
    overloaded = frozenset(name for name, of_seeds in backlogs.items() if min(of_seeds) >= 0.5)
    return Compared(share, per_s, means_s, p99_s, fmean(least_s), alone_s, overloaded)


def _backlog(asked: Sequence[QueryArrival], ran: Ran, bounds: Mapping[str, Bound]) -> float:
    """Work left at the last arrival, without that query, as a share of the run until then."""
    last = asked[-1]
    end_s = max(query.at_s + ran.latencies_s[query.name] for query in asked)
    return (end_s - last.at_s - bounds[last.name].seconds) / max(last.at_s - asked[0].at_s, 1e-9)


def _check(ran: Ran, bounds: Mapping[str, Bound], scheme: Scheme) -> None:
    for name, latency_s in ran.latencies_s.items():
        least_s = bounds[name].seconds
        assert latency_s >= least_s - 1e-9, f"{scheme.name}, {name}: {latency_s} beats {least_s}"
        assert ran.outputs[name] == bounds[name].outputs, f"{scheme.name} answers {name} differently"
