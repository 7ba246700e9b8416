"""Policies by others, and some of ours that were not the better ones: what the benchmarks compare with.

The package has only the policies that somebody would choose. `VOCABULARY` has these as well, so that engines
of a benchmark may name them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.baselines.critical_path import CriticalPath
from benchmarks.baselines.oldest_query import OldestQuery
from benchmarks.baselines.placements.kv_cost import KVCost
from benchmarks.baselines.placements.lmetric import LMetric
from benchmarks.baselines.placements.loadaware import LoadAware
from benchmarks.baselines.placements.prefix_threshold import PrefixThreshold
from benchmarks.baselines.placements.scorers import Scorers
from stretto.apps.vocabulary import DEFAULT
from stretto.cluster.placement import Placement
from stretto.sched.orders.order import NewOrder
from stretto.sched.vocabulary import Vocabulary

_PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    "prefix_threshold": PrefixThreshold,
    "loadaware": LoadAware,
    "kv_cost": KVCost,
    "lmetric": LMetric,
    "scorers": Scorers,
}
_ORDERS: Mapping[str, NewOrder] = {"critical_path": CriticalPath, "oldest_query": OldestQuery}


def with_baselines(vocabulary: Vocabulary) -> Vocabulary:
    """Return a copy of a vocabulary with the orders and placements that only benchmarks use."""
    for name, placement in _PLACEMENTS.items():
        vocabulary = vocabulary.with_placement(name, placement)
    for name, order in _ORDERS.items():
        vocabulary = vocabulary.with_policy(name, order)
    return vocabulary


VOCABULARY = with_baselines(DEFAULT)
PLACEMENTS = VOCABULARY.placements
ORDERS = VOCABULARY.policies
