"""The table of placement policies, by the name that an engine or a router calls them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.cluster.placement import Placement
from stretto.cluster.placements.e2 import E2
from stretto.cluster.placements.kv_cost import KVCost
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.cluster.placements.lmetric import LMetric
from stretto.cluster.placements.loadaware import LoadAware
from stretto.cluster.placements.oracle_partition import OraclePartition
from stretto.cluster.placements.parrot import Parrot
from stretto.cluster.placements.prefix_threshold import PrefixThreshold
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.cluster.placements.scorers import Scorers
from stretto.cluster.placements.stretto import Stretto

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
    "oracle_partition": OraclePartition,
    "parrot": Parrot,
    "stretto": Stretto,
}
