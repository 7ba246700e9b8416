"""Orders of service, which decide which of the requests that wait at an engine goes next.

A policy is a name for an order: one class in one file of this folder, and one line in `ORDERS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.model.nearest_name import check_name
from stretto.model.user_files import check_made, is_in_file, maker_in_file
from stretto.sched.orders.arrival import PerInvocation, Throughput
from stretto.sched.orders.least_work import LeastWork
from stretto.sched.orders.order import NewOrder, OrderConfig
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
    names. Raises ConfigError if there is none.
    """
    if is_in_file(name):
        return maker_in_file(name, "policy")
    check_name("policy", name, known, GONE_ORDERS)
    return known[name]


def check_policy(name: str, known: Mapping[str, NewOrder] = ORDERS) -> None:
    """Check that there is an order of this name, and that what a file names makes one.

    Raises:
        ConfigError: there is none.
    """
    made = order_of(name, known)
    if is_in_file(name):
        wanted = ("add", "remove", "take", "taken", "started", "rank")
        check_made(lambda: made(OrderConfig()), f"policy {name}", wanted, "an order such as PerInvocation")
