"""Changes of a fleet whose effect on its capacity is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stretto.costs.kv_room import kv_device_bytes
from stretto.costs.loading import PCIE_BYTES_S
from stretto.costs.shape import StepShape
from stretto.costs.step import LLMStepCost
from stretto.sizing.servers import Server
from stretto.sizing.trial import TriedFleet

UNAWARE = "least_loaded"
"""Placement that does not look at prefixes."""
_HOST_GIB = 100
"""Host memory for the KV of each GPU."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A fleet with one change.

    Attributes:
        fleet: the changed fleet; None if it cannot be simulated.
        reason: why it cannot, or what the change rests on.
    """

    name: str
    fleet: TriedFleet | None
    reason: str = ""


def variants_of(fleet: TriedFleet, *, has_sessions: bool = True) -> Iterator[Variant]:
    """Yield the changes, one after the other.

    Args:
        has_sessions: whether some jobs have several requests; if none has, nothing is ever held back.
    """
    (server, number), *others = fleet.servers
    yield Variant(f"one more {server.label}", replace(fleet, servers=((server, number + 1), *others)))
    if fleet.num_servers > 1:
        yield Variant("without placement by prefixes", replace(fleet, placement=UNAWARE))
    unheld = replace(fleet, holds_programs=False) if has_sessions else None
    reason = "" if has_sessions else "nothing is held: each job has one request"
    yield Variant("without holding sessions back by KV room", unheld, reason)
    name = "weights in 8 bits"
    lighter = [(_with_light_weights(one), count) for one, count in fleet.servers]
    servers = tuple((one, count) for one, count in lighter if one is not None)
    if len(servers) < len(lighter):
        yield Variant(name, None, "not known: the cost of steps has no part for reading weights")
    else:
        reason = "estimate: weights are half as large and read twice as fast, all else stays"
        yield Variant(name, replace(fleet, servers=servers), reason)
    offloading = tuple((_with_host_memory(one), count) for one, count in fleet.servers)
    reason = f"estimate: {_HOST_GIB} GiB for each GPU, read at {PCIE_BYTES_S / 1e9:.0f} GB/s while steps wait"
    yield Variant("KV offload to host memory", replace(fleet, servers=offloading), reason)


@dataclass(frozen=True)
class LightWeights:
    """The cost of steps of which weights in 16 bits are read in half of the time, as those in 8 bits are.

    A step that waits for launches takes as long as before.
    """

    cost: LLMStepCost

    def step_s(self, shape: StepShape) -> float:
        """Return the predicted seconds of one step."""
        terms = self.cost.terms(shape)
        return sum(terms) - (0.0 if terms.launch else terms.weights / 2)

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the predicted seconds of steps in a row that only decode."""
        return sum(self.step_s(shape.after(repeat) if repeat else shape) for repeat in range(num_repeats))


def _with_light_weights(server: Server) -> Server | None:
    """Return a server whose weights have 8 bits; None if its costs do not tell what reading them takes."""
    if not isinstance(server.cost, LLMStepCost):
        return None
    saved_bytes = server.model.weight_bytes / 2 / server.num_gpus
    more_tokens = int(saved_bytes // kv_device_bytes(server.model, server.num_gpus))
    return replace(
        server,
        cost=LightWeights(server.cost),
        kv_tokens=server.kv_tokens + more_tokens,
        is_measured=False,
    )


def _with_host_memory(server: Server) -> Server:
    num_tokens = int(_HOST_GIB * 2**30 // kv_device_bytes(server.model, server.num_gpus))
    return replace(server, host_kv_tokens=num_tokens)
