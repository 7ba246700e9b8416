"""Orders of service, which decide which of the requests that wait at an engine goes next.

A policy is a name for an order: one class in one file of this folder, and one line in `ORDERS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.model.nearest_name import check_name
from stretto.model.user_files import is_in_file
from stretto.sched.orders.arrival import PerInvocation, Throughput
from stretto.sched.orders.least_work import LeastWork
from stretto.sched.orders.order import NewOrder
from stretto.sched.orders.own_order import order_in_file
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


def order_of(name: str, known: Mapping[str, NewOrder] = ORDERS) -> NewOrder:
    """Return what makes an order: one of a vocabulary by its name, or the class or function that FILE.py:NAME
    names, which is replaced by the order of arrival if it raises.

    Raises:
        ConfigError: there is none of that name, or what the file names makes no order.
    """
    if is_in_file(name):
        return order_in_file(name)
    check_name("policy", name, known, GONE_ORDERS)
    return known[name]


def check_policy(name: str, known: Mapping[str, NewOrder] = ORDERS) -> None:
    """Check that there is an order of this name. Raises ConfigError as `order_of` does."""
    order_of(name, known)
