"""The table of placement policies, by the name that an engine or a router calls them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stretto.cluster.placement import Placement
from stretto.cluster.placements.e2 import E2
from stretto.cluster.placements.kv_cost import KVCost
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.cluster.placements.lmetric import LMetric
from stretto.cluster.placements.loadaware import LoadAware
from stretto.cluster.placements.parrot import Parrot
from stretto.cluster.placements.prefix_threshold import PrefixThreshold
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.cluster.placements.scorers import Scorers
from stretto.cluster.placements.stretto import Stretto
from stretto.model.errors import ConfigError

PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    "least_seconds": LeastSeconds,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "prefix_threshold": PrefixThreshold,
    "loadaware": LoadAware,
    "kv_cost": KVCost,
    "lmetric": LMetric,
    "scorers": Scorers,
    "e2": E2,
    "parrot": Parrot,
    "stretto": Stretto,
}

NEED_KNOWLEDGE: Mapping[str, str] = {
    "oracle_partition": "the parts of all prompts, as `partition` makes them: OraclePartition(parts)",
}
"""What a policy must be given that a name cannot say, by the policy's name. `Vocabulary.with_placement` adds
such a policy."""


def check_placement(name: str, known: Iterable[str] = PLACEMENTS) -> None:
    """Check that a placement policy can be chosen by its name, among those of a vocabulary.

    Raises:
        ConfigError: there is none of that name, or it needs knowledge that nobody gives it here.
    """
    if name in known:
        return
    there_are = f"there are {', '.join(known)}"
    if name in NEED_KNOWLEDGE:
        raise ConfigError(f"the placement {name!r} needs {NEED_KNOWLEDGE[name]}; by name {there_are}")
    raise ConfigError(f"there is no placement {name!r}; {there_are}")
