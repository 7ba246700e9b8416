"""The pass `prune_order`: drop ORDER edges. Values, hints and effects carry the real dependencies.

Source: Teola §4.2, pass 1.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.graph.graph import Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Profiles


def prune_order(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Drop the edges that only say what `>>` said. Ingestion before search is an EFFECT edge, so it stays."""
    return replace(graph, order=()) if graph.order else graph
