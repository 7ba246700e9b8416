"""Changes of a fleet whose effect on its capacity is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stretto.sizing.trial import Fleet

UNAWARE = "least_loaded"
"""Placement that does not look at prefixes."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A fleet with one change.

    Attributes:
        fleet: the changed fleet; None if it cannot be simulated.
        reason: why it cannot, or what the change rests on.
    """

    name: str
    fleet: Fleet | None
    reason: str = ""


def variants_of(fleet: Fleet) -> Iterator[Variant]:
    """Yield the changes, one after the other."""
    (server, number), *others = fleet.servers
    yield Variant(f"one more {server.label}", replace(fleet, servers=((server, number + 1), *others)))
    if fleet.num_servers > 1:
        yield Variant("without placement by prefixes", replace(fleet, placement=UNAWARE))
    yield Variant("without holding sessions back by KV room", replace(fleet, holds_programs=False))
    yield Variant(
        "KV offload to host memory", None, "not known: the simulated servers have no host memory for KV"
    )
