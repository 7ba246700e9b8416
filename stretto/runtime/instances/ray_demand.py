"""The resources that a replica asks of a Ray cluster, and which of its nodes to avoid. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stretto.model.devices import parse_device
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica

_TRACE = 0.001
"""Share of a host's own resource that binds a worker to it; its size does not matter."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of a Ray cluster, with all the resources that it has, free or not."""

    id: str
    host: str
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RayDemand:
    """The resources that a node of a Ray cluster must have to run a replica.

    Attributes:
        num_cpus: cores; Ray counts them and does not bind processes to them.
        num_gpus: accelerators; Ray chooses which and hides the others.
        host: address of the node; empty for any.
        threads: number of threads to compute with; None leaves Ray's choice, which is one for each core.
    """

    num_cpus: int
    num_gpus: int
    host: str = ""
    threads: int | None = None

    @property
    def resources(self) -> dict[str, float]:
        """The needed amounts of resources, by Ray's names for them; zero amounts are left out."""
        wanted: dict[str, float] = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        if self.host:
            wanted[f"node:{self.host}"] = _TRACE
        return {name: amount for name, amount in wanted.items() if amount}

    def fits(self, node: RayNode) -> bool:
        """Return whether a node of the cluster has all the resources that are asked for, whether they are
        free or not.
        """
        return all(node.resources.get(name, 0) >= amount for name, amount in self.resources.items())


def demand_of(replica: Replica) -> RayDemand:
    """Return the resources that `replica` asks of a Ray cluster.

    Of its devices only the numbers count (`cuda` ones as accelerators, `cpu` ones as cores), for Ray decides
    which ones they are. If it names none, a model split into `tp` > 1 parts takes `tp` accelerators, another
    none. It takes as many cores as it names, else as it has threads, and at least one.
    """
    kinds = [parse_device(device)[0] for device in replica.devices]
    num_cores = kinds.count("cpu")
    num_gpus = kinds.count("cuda") if kinds else (replica.tp if replica.tp > 1 else 0)
    threads = replica.threads or num_cores or None
    return RayDemand(num_cores or threads or 1, num_gpus, replica.host, threads)


def check_feasible(demand: RayDemand, nodes: Sequence[RayNode]) -> None:
    """Check that some node of a Ray cluster could hold a replica with these demands.

    Raises:
        ConfigError: no node could hold it, even if it were empty.
    """
    if any(map(demand.fits, nodes)):
        return
    listed = "; ".join(f"{node.host} with {_listed(node.resources)}" for node in nodes) or "none"
    raise ConfigError(
        f"no node of the Ray cluster has {_listed(demand.resources)}; its nodes: {listed}; "
        "ask for less, or start a node that has it"
    )


def to_avoid(demand: RayDemand, nodes: Sequence[RayNode], failed: Iterable[str]) -> list[str]:
    """Return the ids of the nodes that Ray should avoid for a replica: those in `failed`, where a worker was
    lost. The list is empty if no other node could hold the replica.
    """
    ids = sorted(failed)
    return ids if any(demand.fits(node) for node in nodes if node.id not in ids) else []


def parse_head_address(address: str) -> tuple[str, int]:
    """Return the host and port in the address of the head of a Ray cluster.

    Raises:
        ConfigError: the address has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"Ray address {address!r}: it must be the host and port of the cluster's head, as in "
            "'10.0.0.1:6379'"
        )
    return host, int(port)


def _listed(resources: Mapping[str, float]) -> str:
    """Return the resources that replicas ask for, in words."""
    words = {"CPU": "{:g} cores", "GPU": "{:g} accelerators"}
    counts = [form.format(resources[name]) for name, form in words.items() if name in resources]
    hosts = [f"the address {name[5:]}" for name, share in resources.items() if share == _TRACE]
    return ", ".join([*counts, *hosts]) or "nothing"
