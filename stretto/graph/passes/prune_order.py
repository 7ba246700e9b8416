"""The pass `prune_order`: drop ORDER edges. Values, hints and effects carry the real dependencies.

Source: Teola §4.2, pass 1.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.graph.graph import Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Profiles


def prune_order(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Remove the ORDER edges, which only repeat the order in which the app's author wrote the components.

    A step then waits only for the values that it reads. A search still waits for ingestion, whose value (of
    type `effect`) it reads.
    """
    return replace(graph, order=()) if graph.order else graph
