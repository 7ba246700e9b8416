"""The conditions by which passes are weighed, taken from the deployments of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stretto.engines.processor import num_cores
from stretto.graph.passes.base import Conditions
from stretto.model.deployment import Deployment
from stretto.model.replica import Replica
from stretto.runtime.devices import has_accelerator


def idle_conditions(
    deployments: Iterable[Deployment],
    cores: int | None = None,
    has_accelerator: Callable[[], bool] = has_accelerator,
) -> Conditions:
    """Return the conditions of a runtime with these deployments and no work.

    Args:
        cores: number of cores of this machine; None asks the system.
        has_accelerator: whether this machine has an accelerator. It is asked only if a replica takes one
            where there is one (device "auto").
    """
    given = [deployment for deployment in deployments if deployment.replicas]
    count = cores or num_cores()
    threads = {one.name: num_threads(one.replicas[0], count, has_accelerator) for one in given}
    return Conditions(
        {one.name: one.profile for one in given},
        {one.name: len(one.replicas) for one in given},
        count,
        {name: number for name, number in threads.items() if number},
    )


def num_threads(replica: Replica, cores: int, has_accelerator: Callable[[], bool]) -> int:
    """Return the number of this machine's cores on which a replica computes.

    It is 0 for a replica on an accelerator, on another machine or behind a URL, as far as its declaration
    tells.
    """
    config = replica.config
    if replica.runs_in in ("loop", "ray") or getattr(config, "url", None):
        return 0
    device = getattr(config, "device", None)
    if any(not name.startswith("cpu") for name in replica.devices):
        return 0
    if str(device).startswith("cuda") or (device == "auto" and not replica.devices and has_accelerator()):
        return 0
    if replica.threads is not None:
        return min(replica.threads, cores)
    return min(getattr(config, "num_threads", 1) or cores, cores)
