"""The pass `prune_order`: drop ORDER edges. Values, hints and effects carry the real dependencies.

Source: Teola §4.2, pass 1. Differs: steps that touch the same state keep their written order (EFFECT edges).
"""

from __future__ import annotations

from dataclasses import replace

from stretto.graph.graph import Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Profiles
from stretto.graph.written_order import effect_edges

_NAME = "prune_order"


def prune_order(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Remove from a graph the ORDER edges, which only repeat the order in which the app's author wrote the
    components.

    A step then waits only for the values that it reads, and, if it touches state outside the graph, for the
    steps before it that touch the same state where one of them changes it. Edges to steps whose user does not
    allow this pass are kept.
    """
    chosen = [(before, after) for before, after in graph.order if not graph.by_name[after].allows(_NAME)]
    kept = tuple(dict.fromkeys((*chosen, *effect_edges(graph, ops, graph.by_name))))
    return graph if kept == graph.order else replace(graph, order=kept)
