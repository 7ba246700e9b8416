"""Orders of service, which decide which of the requests that wait at an engine goes next.

A policy is a name for an order: one class in one file of this folder, and one line in `ORDERS`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stretto.model.nearest_name import check_name
from stretto.sched.orders.arrival import PerInvocation, Throughput
from stretto.sched.orders.least_work import LeastWork
from stretto.sched.orders.order import NewOrder
from stretto.sched.orders.programs_first import ProgramsFirst
from stretto.sched.orders.rounds import TopologyAware

ORDERS: Mapping[str, NewOrder] = {
    "programs_first": ProgramsFirst,
    "topology_aware": TopologyAware,
    "per_invocation": PerInvocation,
    "throughput": Throughput,
    "least_work": LeastWork,
}

GONE_ORDERS: Mapping[str, str] = {"critical_path": "topology_aware", "oldest_query": "programs_first"}
"""The nearest order that is kept, by the name of each that is only a benchmark's baseline now."""


def check_policy(name: str, known: Collection[str] = ORDERS) -> None:
    """Check that there is an order of this name, among those of a vocabulary. Raises ConfigError if not."""
    check_name("policy", name, known, GONE_ORDERS)
