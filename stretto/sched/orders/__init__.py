"""Orders of service, which decide which of the requests that wait at an engine goes next.

A policy is a name for an order: one class in one file of this folder, and one line in `ORDERS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.sched.orders.arrival import PerInvocation, Throughput
from stretto.sched.orders.least_work import LeastWork
from stretto.sched.orders.oldest_query import OldestQuery
from stretto.sched.orders.order import NewOrder
from stretto.sched.orders.programs_first import ProgramsFirst
from stretto.sched.orders.rounds import CriticalPath, TopologyAware

ORDERS: Mapping[str, NewOrder] = {
    "programs_first": ProgramsFirst,
    "topology_aware": TopologyAware,
    "per_invocation": PerInvocation,
    "throughput": Throughput,
    "critical_path": CriticalPath,
    "least_work": LeastWork,
    "oldest_query": OldestQuery,
}
