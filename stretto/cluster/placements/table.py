"""The table of placement policies, by the name that an engine or a router calls them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.cluster.placement import Placement
from stretto.cluster.placements.e2 import E2
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.cluster.placements.parrot import Parrot
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.cluster.placements.stretto import Stretto
from stretto.model.errors import ConfigError
from stretto.model.foreign import described, raised
from stretto.model.nearest_name import check_name
from stretto.model.user_files import is_in_file, maker_in_file

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


def placement_of(
    name: str, known: Mapping[str, Callable[[], Placement]] = PLACEMENTS
) -> Callable[[], Placement]:
    """Return what makes a placement policy: one of a vocabulary by its name, or the class or function that
    FILE.py:NAME names.

    Raises:
        ConfigError: there is none of that name, or what the file names makes no placement policy.
    """
    if not is_in_file(name):
        check_name("placement", name, known, GONE_PLACEMENTS)
        return known[name]
    made: Callable[[], Placement] = maker_in_file(name, "placement")
    wanted = ("binds", "uses_keys", "load", "choose", "observe")
    try:
        policy = made()
        lacks = [one for one in wanted if not hasattr(policy, one)]
    except raised() as error:  # it is a user's
        raise ConfigError(f"placement {name}: it raised {described(error)}") from error
    if lacks:
        raise ConfigError(f"placement {name}: what it makes has no {lacks[0]!r}; derive it from Placement")
    return made


def check_placement(name: str, known: Mapping[str, Callable[[], Placement]] = PLACEMENTS) -> None:
    """Check that a placement policy can be chosen by its name. Raises ConfigError as `placement_of` does."""
    placement_of(name, known)
