"""How long replicas take for a share of a node's calls: simulated for some shares, and interpolated.

Planners compare thousands of plans, so they use this table; `execute` simulates the plan that they choose.
Large sets of requests are simulated in part: the time of further requests grows evenly.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from stretto.costs.step_arrays import Floats, Ints
from stretto.planner.application import DrawnCalls
from stretto.planner.problem import Problem
from stretto.planner.replica_run import ReplicaLoad, run_replica

_MOST_REQUESTS = 2048


class RunTimes:
    """Seconds that one replica of a node needs for a share of its calls, once it is loaded.

    All inputs are taken to be there. Lengths of answers are those of the first draw.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.num_devices = problem.machine.num_devices
        self._drawn = problem.draws[0]
        self._table: dict[tuple[str, int], Floats] = {
            (name, tp): self._simulated(name, tp) for name in problem.names for tp in problem.costs[name]
        }
        self._lists = {key: values.tolist() for key, values in self._table.items()}
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

    def loading_s(self, node: str, tp: int) -> float:
        """Return the seconds that a replica needs to start."""
        return self.problem.costs[node][tp].loading_s

    def last_s(self, node: str, tp: int) -> float:
        """Return the seconds that the calls of one request take alone; for a chain, of the longest one."""
        return float(self._lists[node, tp][0])

    def least_s(self, node: str) -> float:
        """Return a lower bound of the seconds of any single call of a node."""
        drawn = self._drawn[node]
        load = ReplicaLoad(
            np.array([int(drawn.prompts.min())]),
            np.array([int(drawn.outputs.min())]),
            np.zeros(1),
            np.full(1, -1),
        )
        costs = self.problem.costs[node].values()
        return min(float(run_replica(load, cost.scheduler, cost.step, 0.0).ended_s[0]) for cost in costs)

    def _plans(self, node: str) -> list[tuple[int, int]]:
        """Return all pairs (dp, tp) with which a node can run on this machine."""
        return [(dp, tp) for tp in self.problem.costs[node] for dp in range(1, self.num_devices // tp + 1)]

    def _simulated(self, name: str, tp: int) -> Floats:
        """Return the seconds for a single request (the longest, if it is a chain), and then for the shares
        1 / n, 1 / (n - 1), ..., 1 of all requests on a machine with n devices.
        """
        calls = self._drawn[name]
        requests = np.unique(calls.calls.requests)
        work = np.bincount(calls.calls.requests, weights=calls.prompts + calls.outputs)[requests]
        if np.any(calls.calls.previous >= 0):  # every share has some of the longest chains
            requests = requests[np.argsort(-work, kind="stable")]

        @cache
        def seconds(count: int) -> float:
            evenly = np.arange(count) * len(requests) // count
            return self._seconds(name, tp, calls, requests[evenly])

        row = [seconds(1)]
        for parts in range(self.num_devices, 0, -1):
            count = -(-len(requests) // parts)
            if count <= _MOST_REQUESTS:
                row.append(seconds(count))
                continue
            whole, half = seconds(_MOST_REQUESTS), seconds(_MOST_REQUESTS // 2)
            row.append(whole + (whole - half) * (count - _MOST_REQUESTS) / (_MOST_REQUESTS // 2))
        return np.maximum.accumulate(np.array(row))

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
