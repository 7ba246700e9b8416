"""How long replicas take for a share of a node's calls: simulated for some shares, and interpolated.

Planners compare thousands of plans, so they use this table; `execute` simulates the plan that they choose.
Of many requests, only halves, quarters and so on are simulated; the time grows evenly between these. Very
large sets of requests are simulated in part, and the time of further requests grows evenly, too.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache

import numpy as np

from stretto.costs.step_arrays import Floats, Ints
from stretto.planner.compiled import compiled
from stretto.planner.problem import Problem
from stretto.planner.replica_run import ReplicaLoad, run_replica
from stretto.planner.workload import DrawnCalls

_MOST_REQUESTS = 4096
_MOST_REQUESTS_COMPILED = 16384
_FEW_REQUESTS = 256
_MOST_DRAWS = 3
_FEW_CALLS = 4096


class RunTimes:
    """Seconds that one replica of a node needs for a share of its calls, once it is loaded.

    All inputs are taken to be there. The seconds are means over the first draws of the lengths of answers; of
    many requests, over fewer draws.

    Attributes:
        inputs: inputs of each node that have calls, in the order of the application.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.num_devices = problem.machine.num_devices
        self.inputs = {
            name: tuple(source for source in problem.app.node(name).inputs if source in problem.names)
            for name in problem.names
        }
        self._table = {
            (name, tp): self._mean(name, tp) for name in problem.names for tp in problem.costs[name]
        }
        self._lists: dict[tuple[str, int], list[float]] = {
            key: values.tolist() for key, values in self._table.items()
        }
        self._shares = [0.0, *(1 / parts for parts in range(self.num_devices, 0, -1))]
        self.plans = cache(self._plans)

    def run_s(self, node: str, tp: int, share: float) -> float:
        """Return the seconds that a replica on `tp` devices needs for a share of the node's calls."""
        seconds, num = self._lists[node, tp], self.num_devices
        if share >= 1.0:
            return float(seconds[num])
        parts = 1 / share if share > 0 else num + 1.0
        if parts >= num:
            low, high, from_share, to_share = seconds[0], seconds[1], 0.0, 1 / num
        else:
            at = int(parts)
            low, high = seconds[num - at], seconds[num - at + 1]
            from_share, to_share = 1 / (at + 1), 1 / at
        return float(low + (high - low) * (share - from_share) / (to_share - from_share))

    def share_in(self, node: str, tp: int, seconds: float) -> float:
        """Return the share of the node's calls that a replica does in some seconds; at most 1."""
        row = self._lists[node, tp]
        at = bisect_right(row, seconds)
        if at == len(row):
            return 1.0
        if not at:
            return 0.0
        low, high = self._shares[at - 1], self._shares[at]
        return low + (high - low) * (seconds - row[at - 1]) / (row[at] - row[at - 1])

    def loading_s(self, node: str, tp: int) -> float:
        """Return the seconds that a replica needs to start."""
        return self.problem.costs[node][tp].loading_s

    def last_s(self, node: str, tp: int) -> float:
        """Return the seconds that the calls of one request take alone; for a chain, of the longest one."""
        return float(self._lists[node, tp][0])

    def least_s(self, node: str) -> float:
        """Return a lower bound of the seconds of any single call of a node."""
        drawn = [draw[node] for draw in self.problem.draws]
        load = ReplicaLoad(
            np.array([min(int(calls.prompts.min()) for calls in drawn)]),
            np.array([min(int(calls.outputs.min()) for calls in drawn)]),
            np.zeros(1),
            np.full(1, -1),
        )
        costs = self.problem.costs[node].values()
        return min(float(run_replica(load, cost.scheduler, cost.step, 0.0).ended_s[0]) for cost in costs)

    def _plans(self, node: str) -> list[tuple[int, int]]:
        """Return all pairs (dp, tp) with which a node can run on this machine."""
        return [(dp, tp) for tp in self.problem.costs[node] for dp in range(1, self.num_devices // tp + 1)]

    def _mean(self, name: str, tp: int) -> Floats:
        """Return the mean of what `_simulated` returns for some draws."""
        num = max(1, min(_MOST_DRAWS, _FEW_CALLS // len(self.problem.draws[0][name].outputs)))
        rows = [self._simulated(draw[name], name, tp) for draw in self.problem.draws[:num]]
        mean: Floats = np.mean(rows, axis=0)
        return mean

    def _simulated(self, calls: DrawnCalls, name: str, tp: int) -> Floats:
        """Return the seconds for a single request (the longest, if it is a chain), and then for the shares
        1 / n, 1 / (n - 1), ..., 1 of all requests on a machine with n devices.
        """
        requests = np.unique(calls.calls.requests)
        work = np.bincount(calls.calls.requests, weights=calls.prompts + calls.outputs)[requests]
        if np.any(calls.calls.previous >= 0):  # every share has some of the longest chains
            requests = requests[np.argsort(-work, kind="stable")]

        @cache
        def seconds(count: int) -> float:
            evenly = np.arange(count) * len(requests) // count
            return self._seconds(name, tp, calls, requests[evenly])

        most = _MOST_REQUESTS_COMPILED if compiled() else _MOST_REQUESTS
        counts = [1, *(-(-len(requests) // parts) for parts in range(self.num_devices, 0, -1))]
        halves = {-(-len(requests) // 2**half) for half in range(self.num_devices.bit_length())}
        known = [n for n in counts if n <= _FEW_REQUESTS or (n in halves and n <= most)]
        if counts[-1] > most:
            known = sorted({*known, most // 2, most})
        known_s = [seconds(count) for count in known]
        row = np.interp(counts, known, known_s)
        if counts[-1] > most:
            each_s = (known_s[-1] - known_s[-2]) / (known[-1] - known[-2])
            row += np.maximum(0, np.array(counts) - most) * each_s
        return np.maximum.accumulate(row)

    def _seconds(self, name: str, tp: int, drawn: DrawnCalls, requests: Ints) -> float:
        """Simulate one replica with all calls of these requests."""
        calls = np.flatnonzero(np.isin(drawn.calls.requests, requests))
        place = np.full(len(drawn.outputs) + 1, -1)
        place[calls] = np.arange(len(calls))
        load = ReplicaLoad(
            drawn.prompts[calls],
            drawn.outputs[calls],
            np.zeros(len(calls)),
            place[drawn.calls.previous[calls]],
        )
        cost = self.problem.costs[name][tp]
        return float(run_replica(load, cost.scheduler, cost.step, 0.0).ended_s.max())
