"""Latencies of all policies in all scenes, cell by cell, and what they say."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

from benchmarks.common.latency_bound import least_mean_s
from benchmarks.common.query_bound import EngineWork, QueryBound
from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.placement.contestants import new_policy, num_groups
from benchmarks.placement.machines import Machine
from benchmarks.placement.scenes import Scene
from benchmarks.placement.simulated import simulate
from benchmarks.placement.workloads import Request, make_trace, study
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row, Value
from stretto.trace.agents.requests import AgentTrace
from stretto.trace.agents.sharing import SharedParts

DEFAULT_CELLS = Path("runs/placement")
BOUND = "lower bound"
RATIOS = "how many times better, over all scenes of a group"
_QUANTITIES = (
    *("p99_s", "first_mean_s", "first_p99_s", "token_mean_s", "token_p99_s"),
    *("hit_share", "imbalance"),
)
_PAIRS = (
    ("workloads", "round_robin", "e2"),
    ("workloads", "round_robin", "stretto"),
    ("workloads", "oracle_partition", "e2"),
    ("workloads", "lmetric", "stretto"),
    ("Azure mixture", "round_robin", "e2"),
    ("no chunked prefill", "round_robin", "e2"),
    ("no chunked prefill", "oracle_partition", "e2"),
)


@dataclass(frozen=True, slots=True)
class Simulated:
    """The results of one scene: for each contestant the outcome of each seed, in the order of seeds."""

    scene: Scene
    outcomes: Mapping[str, Sequence[Mapping[str, float]]]
    bounds_s: Sequence[float]

    def means(self, contestant: str, quantity: str = "mean_s") -> list[float]:
        """Return a quantity of a contestant for each seed."""
        return [one[quantity] for one in self.outcomes[contestant]]

    def mean(self, contestant: str, quantity: str = "mean_s") -> float:
        """Return the mean over all seeds of a quantity of a contestant."""
        return statistics.fmean(self.means(contestant, quantity))

    def is_worse(self, contestant: str, other: str) -> bool:
        """Return whether a contestant's mean latency is higher than another's beyond the spread: the mean
        difference over seeds is more than the standard deviation of the differences, and more than 1 %.
        """
        pairs = zip(self.means(contestant), self.means(other), strict=True)
        differences = [mine - theirs for mine, theirs in pairs]
        least_s = max(statistics.pstdev(differences), 0.01 * self.mean(other))
        return statistics.fmean(differences) > least_s


def simulate_scenes(scenes: Iterable[Scene], num_seeds: int, options: BenchmarkOptions) -> list[Simulated]:
    """Simulate all contestants of all scenes; what the folder of cells has is not repeated."""
    cells = Cells(options.cells or DEFAULT_CELLS)
    seeds = range(options.seed, options.seed + num_seeds)
    return [_simulate(scene, seeds, cells, options) for scene in scenes]


def _simulate(scene: Scene, seeds: Sequence[int], cells: Cells, options: BenchmarkOptions) -> Simulated:
    outcomes: dict[str, list[Mapping[str, float]]] = {name: [] for name in scene.contestants}
    bounds_s = []
    for seed in seeds:
        made = _Made(scene, seed, options.data)
        settings = {**asdict(scene), "data": options.data is not None}
        for name in (BOUND, *scene.contestants):
            options.say(f"{scene.group}: {scene.name}, seed {seed}, {name}")
            key = CellKey(name, scene.workload, scene.rate_per_s, seed, settings)
            found = cells.get(key, made.bound if name == BOUND else partial(made.outcome, name))
            if name == BOUND:
                bounds_s.append(float(found["mean_s"]))
            else:
                outcomes[name].append(found)
    return Simulated(scene, outcomes, bounds_s)


class _Made:
    """The requests of one seed of a scene, which are made when they are first needed."""

    def __init__(self, scene: Scene, seed: int, data: Path | None) -> None:
        self._scene, self._seed, self._data = scene, seed, data

    @cached_property
    def _arriving(self) -> tuple[list[Request], list[float]]:
        return self._scene.requests(self._seed, self._data)

    @cached_property
    def _trace(self) -> AgentTrace:
        return make_trace(*self._arriving)

    def outcome(self, name: str) -> Mapping[str, float]:
        """Simulate one contestant."""
        policy = new_policy(name, self._arriving[0], self._trace, len(self._scene.machines))
        return simulate(self._trace, policy, self._scene.instances(num_groups(name))).as_dict()

    def bound(self) -> Mapping[str, float]:
        """Return a lower bound of the mean latency."""
        requests, arrivals_s = self._arriving
        return {"mean_s": bound_s(arrivals_s, study(requests), self._scene.instances().machines)}


def bound_s(
    arrivals_s: Sequence[float], requests: Sequence[SharedParts], machines: Sequence[Machine]
) -> float:
    """Return a lower bound of the mean latency in seconds, for any policy and any order.

    Each request takes at least what it takes alone on the fastest machine, if all that earlier prompts have
    in common with it is cached there. Together they take at least the prefills of the rest, if all machines
    were one.
    """
    profiles = [machine.profile for machine in machines]
    prefill_s = min(profile.per_unit_s for profile in profiles)
    step_s = min(profile.per_output_s for profile in profiles)
    together_s = 1 / sum(1 / profile.per_unit_s for profile in profiles)
    bounds = []
    for one in requests:
        num_missing = max(1, one.prompt.num_tokens - one.found_tokens)
        decodes_s = step_s * (one.prompt.output_tokens - 1)
        work = EngineWork(0.0, num_missing * together_s, decodes_s)
        bounds.append(QueryBound(num_missing * prefill_s + decodes_s, {}, {}, {"llm": work}))
    return least_mean_s(arrivals_s, bounds)


def rows(results: Sequence[Simulated]) -> list[Row]:
    """Return a table for each scene, and one of the paper's ratios."""
    found = []
    for result in results:
        table = f"{result.scene.group}: {result.scene.name}"
        bound = statistics.fmean(result.bounds_s)
        found.append(Row(table, BOUND, {"mean_s": bound}, "computed"))
        for name in result.outcomes:
            values: dict[str, Value] = {"mean_s": result.mean(name)}
            values["spread_s"] = statistics.pstdev(result.means(name))
            values |= {quantity: result.mean(name, quantity) for quantity in _QUANTITIES}
            values["over_bound"] = result.mean(name) / bound
            values["failed"] = sum(result.means(name, "num_failed"))
            found.append(Row(table, name, values, "simulated"))
    return found + [row for pair in _PAIRS if (row := _ratios(results, *pair)) is not None]


def goals(results: Sequence[Simulated]) -> list[Goal]:
    """Return what the simulations must show."""
    found = []
    ours = [one for one in results if "stretto" in one.outcomes]
    lost = [one for one in ours if any(one.is_worse("stretto", other) for other in one.outcomes)]
    name = f"of {len(ours)} scenes, those where stretto is worse than another policy beyond the spread"
    found.append(Goal(name, len(lost), 0, "lower"))
    for group, other, least_mean, least_p99 in (
        ("workloads", "round_robin", 1.5, 2.0),
        ("no chunked prefill", "oracle_partition", 1.15, 1.6),
    ):
        for quantity, least in (("mean_s", least_mean), ("p99_s", least_p99)):
            ratios = _speedups(results, group, other, "e2", quantity)
            if ratios:
                what = f"{group}: {quantity} of {other} over that of e2, largest"
                found.append(Goal(what, max(ratios), least, "higher"))
    unshared = [one for one in results if one.scene.group == "no sharing"]
    for name in ("e2", "stretto"):
        shares = [one.mean(name) / one.mean("least_loaded") for one in unshared if name in one.outcomes]
        if shares:
            what = f"no sharing: mean_s of {name} over that of least_loaded, largest"
            found.append(Goal(what, max(shares), 1.02, "lower"))
    return found


def where_we_lose(results: Sequence[Simulated]) -> list[str]:
    """Return a sentence for each scene where another policy is better than ours beyond the spread."""
    found = []
    for result in results:
        if "stretto" in result.outcomes:
            better = [name for name in result.outcomes if result.is_worse("stretto", name)]
            if better:
                best = min(better, key=result.mean)
                share = result.mean("stretto") / result.mean(best)
                found.append(
                    f"{result.scene.group}: {result.scene.name}: {best} is better, by {share:.2f} times"
                )
    return found


def _ratios(results: Sequence[Simulated], group: str, other: str, name: str) -> Row | None:
    """Return the range over all scenes of a group of how much better a contestant is than another."""
    values: dict[str, Value] = {}
    for quantity in ("mean_s", "p99_s"):
        if ratios := _speedups(results, group, other, name, quantity):
            values |= {f"{quantity[:-2]}_least": min(ratios), f"{quantity[:-2]}_most": max(ratios)}
    return Row(RATIOS, f"{group}: {name} over {other}", values, "simulated") if values else None


def _speedups(results: Sequence[Simulated], group: str, other: str, name: str, quantity: str) -> list[float]:
    return [
        one.mean(other, quantity) / one.mean(name, quantity)
        for one in results
        if one.scene.group == group and {other, name} <= one.outcomes.keys()
    ]
