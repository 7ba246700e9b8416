"""How much of a worker is kept free for other routers, so that each serves its share of those that wait.

Whoever has a place refills it at once: a router that comes when another one has filled all workers would
never get one. So, while requests wait for a worker at other routers, each router is due a part of its places
and of its memory: the weights of the owners that wait there, over those of all that wait. An owner that waits
at several routers counts at each in equal parts. What a router has not yet of its part is kept free for it by
the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Waiting = Mapping[str, Mapping[str, int]]
"""How many requests of each owner wait for each worker; "" stands for any worker."""


def parts(routers: Sequence[Waiting], worker: str, weight: Callable[[str], float]) -> list[float]:
    """Return the part of a worker that each router is due; 0 for all if nobody waits for it."""
    owners = [{**one.get("", {}), **one.get(worker, {})} for one in routers]
    num_routers: dict[str, int] = {}
    for of_router in owners:
        for owner in of_router:
            num_routers[owner] = num_routers.get(owner, 0) + 1
    total = sum(map(weight, num_routers))
    if not total:
        return [0.0] * len(routers)
    return [sum(weight(one) / num_routers[one] for one in of_router) / total for of_router in owners]


def kept(part: float, whole: int, has: int) -> int:
    """Return how much of `whole` is kept free for a router that is due a part of it and `has` some."""
    return max(0, math.floor(part * whole + 1e-9) - has)
