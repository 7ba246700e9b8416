"""The table of placement policies, by the name that an engine or a router calls them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.cluster.placement import Placement
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.cluster.placements.round_robin import RoundRobin

PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    "least_seconds": LeastSeconds,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
}
