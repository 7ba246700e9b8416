"""How simulated programs plan their queries and send their requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stretto.graph.passes.pipeline import PASSES


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a simulated program plans its queries and sends its requests.

    Attributes:
        passes: names of passes.
        policy: order of all queues.
        placement: rule that chooses the LLM server.
        sends_all: whether LLM requests go to a server at once and wait there, first come first served.
    """

    name: str
    passes: tuple[str, ...] = tuple(PASSES)
    policy: str = "least_work"
    placement: str = "least_seconds"
    sends_all: bool = False


SIMULATED_OURS = Scheme("ours")
SIMULATED_BY_HAND = Scheme(
    "by hand",
    ("prune_order", "split_stages", "pipeline_decode", "drop_dead"),
    "throughput",
    "least_loaded",
    sends_all=True,
)
OLDEST_QUERY = replace(SIMULATED_OURS, name="order oldest_query", policy="oldest_query")
LEAST_LOADED = replace(SIMULATED_OURS, name="placement least_loaded", placement="least_loaded")


def variants() -> list[Scheme]:
    """Return ours, ours without a pass or with another policy, and the hand-written program."""
    ours = SIMULATED_OURS
    without = [
        replace(ours, name=f"without {name}", passes=tuple(one for one in PASSES if one != name))
        for name in PASSES
    ]
    others = [
        OLDEST_QUERY,
        replace(ours, name="order throughput", policy="throughput"),
        replace(ours, name="order topology_aware", policy="topology_aware"),
        LEAST_LOADED,
        replace(ours, name="placement round_robin", placement="round_robin"),
    ]
    return [ours, *without, replace(ours, name="without passes", passes=()), *others, SIMULATED_BY_HAND]


_MAIN = (
    "ours",
    "without prune_order",
    "without pipeline_decode",
    "order throughput",
    "order oldest_query",
    "placement round_robin",
)


def main_variants() -> list[Scheme]:
    """Return ours, and those of its variants that differ most in virtual time."""
    return [scheme for scheme in variants() if scheme.name in _MAIN]
