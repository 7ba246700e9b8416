"""The choice between the two ways in which requests get from an engine's queue to an instance."""

from __future__ import annotations

from collections.abc import Callable

from stretto.cluster.placement import Binds
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.loads import InstanceLoads
from stretto.sched.llm.place_early import PlaceEarly
from stretto.sched.llm.place_late import PlaceLate
from stretto.sched.llm.placing import Describe, Placing
from stretto.sched.llm.shown_parts import ShownParts


def new_placing(
    binds: Binds,
    queue: EngineQueue,
    loads: InstanceLoads,
    shown: ShownParts,
    describe: Describe,
    new_queue: Callable[[], EngineQueue],
) -> Placing:
    """Return the object that moves requests from an engine's `queue` to instances, at the time the placement
    policy wants.

    If the policy `binds` late, a request stays in `queue` until an instance has room. Otherwise it is
    assigned to an instance when it comes and waits in that instance's own queue, which `new_queue` makes.
    """
    if binds == "late":
        return PlaceLate(queue, loads, shown, describe)
    return PlaceEarly(queue, loads, shown, describe, new_queue=new_queue, moves=binds == "early")
