"""What is asked of the nodes of a running graph, deduced from what is asked of its variables.

A reader asks for a variable with criteria and perhaps a deadline. All nodes that the variable comes of have
to serve that reader: they have the strictest criteria of all their readers, they have to start a predicted
path before the earliest deadline, and their path is the longest one.

Source: Parrot §5.2 (performance objective deduction). Differs: readers may have deadlines, and a later reader
may ask for more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stretto.graph.compile import Node
from stretto.sched.live_graph import LiveGraph
from stretto.tasks import Objective


class Demand(NamedTuple):
    """What is asked of a value, or of a node and its requests.

    Attributes:
        criteria: the strictest ("latency" before "throughput") of all who ask; None if nobody asks.
        start_by_s: point in the driver's time when it has to start, so that all deadlines can be kept; of a
            value, when it has to be there. Infinite without a deadline.
        path_s: predicted seconds from its start until the last value that somebody asks for.
    """

    criteria: Objective | None
    start_by_s: float = math.inf
    path_s: float = 0.0

    def joined(self, other: Demand) -> Demand:
        """Return what both ask together."""
        return Demand(
            self.criteria if self.criteria == "latency" or other.criteria is None else other.criteria,
            min(self.start_by_s, other.start_by_s),
            max(self.path_s, other.path_s),
        )

    def before(self, seconds: float) -> Demand:
        """Return what is asked of something that takes so many seconds, and whose end this is asked of."""
        return Demand(self.criteria, self.start_by_s - seconds, self.path_s + seconds)


NOBODY = Demand(None)
"""What is asked of a node that nobody needs yet."""


def deduce(live: LiveGraph, asked: Mapping[int, Demand], of_effects: Demand) -> dict[int, Demand]:
    """Return what is asked of each node that values in `asked`, and effects, come of; others are left out.

    It takes time in proportion to those nodes and what they read.
    """
    at_end: dict[int, Demand] = dict.fromkeys(live.effects, of_effects)
    for value_id, demand in asked.items():
        if (node := live.producer(value_id)) is not None:
            at_end[node.id] = _joined(at_end.get(node.id), demand)
    found: dict[int, Demand] = {}
    for node in _readers_first(live, list(at_end)):
        demand = found[node.id] = at_end[node.id].before(node.own_s)
        for source in live.sources(node):
            at_end[source.id] = _joined(at_end.get(source.id), demand)
    return found


def changes(before: Mapping[int, Demand], now: Mapping[int, Demand]) -> dict[int, Demand]:
    """Return what is asked now of those nodes of which something else was asked before."""
    found = {node: demand for node, demand in now.items() if before.get(node) != demand}
    found.update((node, NOBODY) for node in before if node not in now)
    return found


def _joined(demand: Demand | None, other: Demand) -> Demand:
    return other if demand is None else demand.joined(other)


def _readers_first(live: LiveGraph, ends: list[int]) -> list[Node]:
    """The nodes that `ends` come of, they included, each after all of these that read it."""
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, Iterator[Node]]] = []
    for end in ends:
        if end in seen:
            continue
        seen.add(end)
        stack.append((live.nodes[end], live.sources(live.nodes[end])))
        while stack:
            node, sources = stack[-1]
            source = next((one for one in sources if one.id not in seen), None)
            if source is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(source.id)
                stack.append((source, live.sources(source)))
    order.reverse()
    return order
