"""The pass `drop_dead`: remove primitives that no output and no effect needs."""

from __future__ import annotations

from dataclasses import replace

from stretto.graph.graph import Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Profiles
from stretto.graph.written_order import effect_edges


def drop_dead(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Remove from a graph the primitives whose values no output and no effect needs, directly or
    through others.

    An effect is a step that changes something outside, such as one that stores documents. Where a removed
    step stood between two that touch the same state, these keep their order.
    """
    needed = {ref.name for _, ref in graph.outputs}
    kept = []
    for primitive in reversed(graph.primitives):
        if primitive.name in needed or ops.is_effect(primitive) or not primitive.allows("drop_dead"):
            needed |= {primitive.name, *(arg.ref.name for arg in primitive.args)}
            kept.append(primitive)
    if len(kept) == len(graph.primitives):
        return graph
    order = dict.fromkeys((*graph.order, *effect_edges(graph, ops, needed)))
    live = tuple(pair for pair in order if pair[0] in needed and pair[1] in needed)
    return replace(graph, primitives=tuple(reversed(kept)), order=live)
