"""The pass `prune_order`: drop ORDER edges. Values, hints and effects carry the real dependencies.

Source: Teola §4.2, pass 1.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.graph.graph import Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Profiles

_NAME = "prune_order"


def prune_order(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Remove from a graph the ORDER edges, which only repeat the order in which the app's author wrote the
    components.

    A step then waits only for the values that it reads. A search still waits for ingestion, whose value (of
    type `effect`) it reads. Edges to steps whose user does not allow this pass are kept.
    """
    kept = tuple((before, after) for before, after in graph.order if not graph.by_name[after].allows(_NAME))
    return graph if kept == graph.order else replace(graph, order=kept)
