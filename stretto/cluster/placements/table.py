"""The table of placement policies, by the name that an engine or a router calls them by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from stretto.cluster.placement import Placement
from stretto.cluster.placements.e2 import E2
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.cluster.placements.parrot import Parrot
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.cluster.placements.stretto import Stretto
from stretto.model.nearest_name import check_name

PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    "least_seconds": LeastSeconds,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "e2": E2,
    "parrot": Parrot,
    "stretto": Stretto,
}

GONE_PLACEMENTS: Mapping[str, str] = {
    "prefix_threshold": "e2",
    "loadaware": "stretto",
    "kv_cost": "stretto",
    "lmetric": "stretto",
    "scorers": "stretto",
    "oracle_partition": "e2",
}
"""The nearest policy that is kept, by the name of each that is only a benchmark's baseline now."""


def check_placement(name: str, known: Collection[str] = PLACEMENTS) -> None:
    """Check that a placement policy can be chosen by its name, among those of a vocabulary.

    Raises:
        ConfigError: there is none of that name.
    """
    check_name("placement", name, known, GONE_PLACEMENTS)
