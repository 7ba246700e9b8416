"""The contestants: who schedules what, with which cache, and how much an engine takes at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.baselines import PLACEMENTS
from stretto.graph.passes.weigh import WEIGHED
from stretto.model.errors import ConfigError

Caching = Literal["none", "static", "automatic"]
LATENCY_TOKENS = 4096
"""Tokens in a batch of the latency-centric baseline, with which a step takes about 40 ms. Source: §8.1."""
_UNLIMITED = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to run workflows.

    Attributes:
        sends_graphs: whether the client sends all calls of a workflow at once, as a graph, or each call when
            its inputs are there.
        caching: prefixes that the engines find again: none, those that a developer declares, or all.
        budget_tokens: tokens in flight on an instance; beyond that requests wait in the service. None
            stands for as many as the instance can hold, shared ones counted once.
        placement: policy that chooses the instance of a request.
        policy: order of the requests that wait in the service.
        passes: rewriting passes for graphs.
        reads_shared_once: whether the attention kernel reads a prefix that several decodes share once.
    """

    name: str
    sends_graphs: bool = False
    caching: Caching = "none"
    budget_tokens: int | None = _UNLIMITED
    placement: str = "least_loaded"
    policy: str = "per_invocation"
    passes: tuple[str, ...] = WEIGHED
    reads_shared_once: bool = False


LATENCY = Contestant("latency", budget_tokens=LATENCY_TOKENS)
THROUGHPUT = Contestant("throughput")
STATIC = Contestant("static", caching="static")
AUTOMATIC = Contestant("automatic", caching="automatic", placement="prefix_threshold")
STRETTO = Contestant(
    "stretto",
    sends_graphs=True,
    caching="automatic",
    budget_tokens=None,
    placement="stretto",
    policy="least_work",
    reads_shared_once=True,
)
PARROT = replace(STRETTO, name="parrot", placement="parrot", policy="topology_aware")
NO_KERNEL = replace(STRETTO, name="no kernel", reads_shared_once=False)
NO_SHARING = replace(NO_KERNEL, name="no sharing", caching="none", passes=())
NO_AFFINITY = replace(STRETTO, name="no affinity", placement="least_loaded")

CAPACITIES = tuple(
    replace(THROUGHPUT, name=f"{budget:,} tokens", budget_tokens=budget)
    for budget in (2048, 4096, 6144, 8192, 12_288)
)
"""Engines that differ in how many tokens they take at once."""

CONTESTANTS: Mapping[str, Contestant] = {
    one.name: one
    for one in (
        *CAPACITIES,
        *(LATENCY, THROUGHPUT, STATIC, AUTOMATIC),
        *(PARROT, STRETTO, NO_KERNEL, NO_SHARING, NO_AFFINITY),
    )
}
OURS = ("parrot", "stretto")


def contestant(name: str) -> Contestant:
    """Return the contestant of a name.

    Raises:
        ConfigError: there is none, or its placement policy does not exist.
    """
    if name not in CONTESTANTS:
        raise ConfigError(f"there is no contestant {name!r}; there are {', '.join(CONTESTANTS)}")
    found = CONTESTANTS[name]
    if found.placement not in PLACEMENTS:
        raise ConfigError(
            f"{name}: there is no placement policy {found.placement!r}; there are {', '.join(PLACEMENTS)}"
        )
    return found


def is_there(name: str) -> bool:
    """Return whether the placement policy of a contestant exists."""
    return CONTESTANTS[name].placement in PLACEMENTS
