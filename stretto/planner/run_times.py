"""How long replicas take for a share of a model's calls: simulated for some shares, and interpolated.

Planners compare thousands of plans, so they use this table; `execute` simulates the plan that they choose.
Of many requests, only halves, quarters and so on are simulated; the time grows evenly between these. Small
shares are simulated too: the longest of few answers takes more than their share of the time. Very
large sets of requests are simulated in part, and the time of further requests grows evenly, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from stretto.costs.step_arrays import Floats, ShapeArrays, steps_s
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.planner.circles import Circles, models_given
from stretto.planner.drawn_calls import ModelCalls, calls_together
from stretto.planner.machine import ReplicaCost
from stretto.planner.problem import Problem
from stretto.planner.replica_run import ReplicaLoad
from stretto.planner.simulate import check_requests, most_blocks, simulate_steps

_MOST_REQUESTS = 16384
_FEW_CALLS, _FEW_CHAINED_CALLS = 8192, 2048
_NUM_SMALL = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of the simulations for a table of run times.

    Attributes:
        most_requests: requests of a set beyond which it is simulated in part.
        few_requests: sets of at most so many requests are all simulated, of larger ones halves, quarters and
            so on; if 0, only the largest set and its half.
        most_draws: draws of lengths that are simulated at most.
    """

    most_requests: int
    few_requests: int = 256
    most_draws: int = 3


class RunTimes:
    """Seconds that one replica of a model needs for a share of its calls, once it is loaded.

    The calls are those of all nodes that use the model. All inputs are taken to be there. The seconds are
    means over the first draws of the lengths of answers; of many requests, over fewer draws.

    Args:
        effort: what the simulations may take; the most that is useful if there is none.
        like: times of the same problem with other servers; those of servers with equal nodes are taken.

    Attributes:
        inputs: models that each model waits for directly, and that do not wait for it.
        circles: models that wait for each other.
        num_draws: largest number of draws that were simulated of a model.
    """

    def __init__(self, problem: Problem, effort: Effort | None = None, like: RunTimes | None = None) -> None:
        self.problem = problem
        self._like = like
        self._effort = effort or Effort(_MOST_REQUESTS)
        self.num_devices = problem.machine.num_devices
        self.models = problem.models
        sources, given = problem.app.sources(problem.names), models_given(problem)
        self.inputs = {
            model: tuple(one for one in self.models if one in given[model] and sources[one] != sources[model])
            for model in self.models
        }
        self.parts = cache(self._parts_of)
        self.circles = Circles(problem, self.parts)
        self._rows = {key: rows for model in self.models for key, rows in self._rows_of(model)}
        self.num_draws = max(map(len, self._rows.values()))
        self._lists: dict[tuple[str, int], list[float]] = {
            key: np.mean(rows, axis=0).tolist() for key, rows in self._rows.items()
        }
        self._shares = [0.0, *(1 / parts for parts in self._parts())]
        self.plans = cache(self._plans)
        self.alone_s = cache(self._alone_s)

    def run_s(self, model: str, tp: int, share: float) -> float:
        """Return the seconds that a replica on `tp` devices needs for a share of the model's calls."""
        return self._at_share(self._lists[model, tp], share)

    def each_run_s(self, model: str, tp: int, share: float) -> list[float]:
        """Return what `run_s` is the mean of: the seconds with each of `num_draws` draws. A model for which
        fewer draws were simulated has the same ones again.
        """
        found = [self._at_share(row, share) for row in self._rows[model, tp]]
        return [found[at % len(found)] for at in range(self.num_draws)]

    def _at_share(self, seconds: list[float], share: float) -> float:
        if share >= 1.0:
            return seconds[-1]
        shares = self._shares
        at = bisect_right(shares, share)
        before = shares[at - 1]
        return seconds[at - 1] + (seconds[at] - seconds[at - 1]) * (share - before) / (shares[at] - before)

    def share_in(self, model: str, tp: int, seconds: float) -> float:
        """Return the share of the model's calls that a replica does in some seconds; at most 1."""
        row = self._lists[model, tp]
        at = bisect_right(row, seconds)
        if at == len(row):
            return 1.0
        if not at:
            return 0.0
        low, high = self._shares[at - 1], self._shares[at]
        return low + (high - low) * (seconds - row[at - 1]) / (row[at] - row[at - 1])

    def loading_s(self, model: str, tp: int) -> float:
        """Return the seconds that a replica needs to start."""
        return self.problem.costs[model][tp].loading_s

    def last_s(self, model: str, tp: int) -> float:
        """Return the seconds that one whole of calls takes alone; for a chain, the longest one."""
        return float(self._lists[model, tp][0])

    def _parts_of(self, model: str) -> Mapping[str, float]:
        """Return the share of each node in the work of its model, by the time that it takes alone."""
        nodes = self.problem.nodes_of(model)
        if len(nodes) == 1:
            return dict.fromkeys(nodes, 1.0)
        costs, drawn = self.problem.costs[model], self.problem.draw(0)
        cost = costs[min(costs)]
        seconds = {name: self._simulated(_Steps(calls_together([drawn[name]])), cost)[-1] for name in nodes}
        total_s = max(1e-12, sum(seconds.values()))
        return {name: float(took_s / total_s) for name, took_s in seconds.items()}

    def _alone_s(self, model: str, plan: tuple[int, int]) -> float:
        """Return the seconds from the start of a model's replicas, (dp, tp), until all its calls are done."""
        dp, tp = plan
        return self.loading_s(model, tp) + self.run_s(model, tp, 1 / dp)

    def _plans(self, model: str) -> list[tuple[int, int]]:
        """Return all pairs (dp, tp) with which a model can run on this machine."""
        return [(dp, tp) for tp in self.problem.costs[model] for dp in range(1, self.num_devices // tp + 1)]

    def _parts(self) -> list[int]:
        """Return into how many parts the requests are divided, for each share of the table."""
        num = self.num_devices
        return [*(num * 2**half for half in range(_NUM_SMALL, 0, -1)), *range(num, 0, -1)]

    def _rows_of(self, model: str) -> Iterator[tuple[tuple[str, int], list[list[float]]]]:
        """Yield what `_simulated` returns for some draws, by model and tensor parallelism."""
        nodes = self.problem.nodes_of(model)
        if self._like is not None and nodes == self._like.problem.nodes_of(model):
            yield from ((key, rows) for key, rows in self._like._rows.items() if key[0] == model)
            return
        calls = [self.problem.workload.calls[name] for name in nodes]
        few = _FEW_CHAINED_CALLS if any(np.any(one.previous >= 0) for one in calls) else _FEW_CALLS
        most = min(self._effort.most_draws, self.problem.num_draws)
        num = max(1, min(most, few // sum(len(one.requests) for one in calls)))
        draws = (self.problem.draw(at) for at in range(num))
        steps = [_Steps(calls_together([drawn[name] for name in nodes])) for drawn in draws]
        for tp, cost in self.problem.costs[model].items():
            yield (model, tp), [self._simulated(one, cost).tolist() for one in steps]

    def _simulated(self, steps: _Steps, cost: ReplicaCost) -> Floats:
        """Return the seconds for a single whole (the longest, if it is a chain), and then for shares of all
        wholes: one over each of `_parts`.
        """
        most, num_wholes = self._effort.most_requests, len(steps.wholes)
        if not num_wholes:  # no answer of this draw has asked for any
            return np.zeros(1 + len(self._parts()))
        counts = [1, *(-(-num_wholes // parts) for parts in self._parts())]
        num_halves = self.num_devices.bit_length() + _NUM_SMALL
        halves = {-(-num_wholes // 2**half) for half in range(num_halves)}
        few, largest = self._effort.few_requests, min(counts[-1], most)
        chosen = {1, -(-largest // 2), largest}
        if few:
            chosen.update(n for n in counts if n <= few or (n in halves and n <= most))
        known = sorted(chosen)
        known_s = steps.seconds(known, cost)
        row = np.interp(counts, known, known_s)
        if counts[-1] > most:
            each_s = (known_s[-1] - known_s[-2]) / (known[-1] - known[-2])
            row += np.maximum(0, np.array(counts) - most) * each_s
        return np.maximum.accumulate(row)


class _Steps:
    """The steps of one replica with shares of some calls. Steps do not depend on how long they take, so that
    they are simulated once for all numbers of devices with enough KV blocks.

    Attributes:
        wholes: wholes of the calls; of chains, those with the most work first.
    """

    def __init__(self, calls: ModelCalls) -> None:
        self._calls = calls
        self.wholes = np.unique(calls.wholes)
        work = np.bincount(calls.wholes, weights=calls.prompts + calls.outputs)[self.wholes]
        if np.any(calls.previous >= 0):  # every share has some of the longest chains
            self.wholes = self.wholes[np.argsort(-work, kind="stable")]
        self._load_of = cache(self._load)
        self._shapes: dict[tuple[int, SchedulerConfig], ShapeArrays] = {}

    def seconds(self, counts: Sequence[int], cost: ReplicaCost) -> list[float]:
        """Return the seconds for some numbers of wholes, evenly taken."""
        shapes = [self._shapes_of(count, cost.scheduler) for count in counts]
        each_s = steps_s(cost.step, ShapeArrays.joined(shapes))
        ends = np.cumsum([len(one.repeats) for one in shapes])[:-1]
        return [float(np.cumsum(part_s)[-1]) for part_s in np.split(each_s, ends)]

    def _shapes_of(self, count: int, config: SchedulerConfig) -> ShapeArrays:
        load = self._load_of(count)
        check_requests(config, load.prompts, load.outputs)
        most = most_blocks(config, load.prompts, load.outputs)
        config = replace(config, num_blocks=min(config.num_blocks, most))
        key = count, config
        if key not in self._shapes:
            log, _ = simulate_steps(config, load.prompts, load.outputs, load.previous)
            self._shapes[key] = log.shapes()
        return self._shapes[key]

    def _load(self, count: int) -> ReplicaLoad:
        wholes = self.wholes[np.arange(count) * len(self.wholes) // count]
        calls = np.flatnonzero(np.isin(self._calls.wholes, wholes))
        place = np.full(len(self._calls.outputs) + 1, -1)
        place[calls] = np.arange(len(calls))
        previous = place[self._calls.previous[calls]]
        return ReplicaLoad(
            self._calls.prompts[calls], self._calls.outputs[calls], np.zeros(len(calls)), previous
        )
