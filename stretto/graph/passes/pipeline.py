"""The passes, in the order they run, and `optimise`, which runs them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stretto.errors import GraphError
from stretto.graph.graph import Graph
from stretto.graph.ops import OPS, Ops
from stretto.graph.passes.base import Pass, Profiles
from stretto.graph.passes.drop_dead import drop_dead
from stretto.graph.passes.pipeline_decode import pipeline_decode
from stretto.graph.passes.prune_order import prune_order
from stretto.graph.passes.share_prefix import share_prefix
from stretto.graph.passes.split_prefill import split_prefill
from stretto.graph.passes.split_stages import split_stages
from stretto.graph.verify import verify

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "prune_order": prune_order,  # Teola pass 1
        "split_stages": split_stages,  # Teola pass 2
        "split_prefill": split_prefill,  # Teola pass 3
        "pipeline_decode": pipeline_decode,  # Teola pass 4
        "share_prefix": share_prefix,  # Parrot §5.3; after split_prefill, whose heads it merges
        "drop_dead": drop_dead,
    }
)
"""The passes that Stretto comes with, in pipeline order."""


def optimise(graph: Graph, profiles: Profiles, passes: Mapping[str, Pass], ops: Ops = OPS) -> Graph:
    """Run `passes` in their order, once each; the result is verified.

    One sweep reaches the fixed point: no pass makes work for an earlier one. To verify once is most of
    the cost saved; if something is wrong, the passes are run again one by one to find the culprit.

    Raises:
        GraphError: a pass broke the graph; the message names the pass.
    """
    optimised = graph
    try:
        for run_pass in passes.values():
            optimised = run_pass(optimised, profiles, ops)
        if optimised is not graph:
            verify(optimised, ops)
    except Exception:
        for name, run_pass in passes.items():
            graph = apply_pass(name, run_pass, graph, profiles, ops)
        raise
    return optimised


def apply_pass(name: str, run_pass: Pass, graph: Graph, profiles: Profiles, ops: Ops = OPS) -> Graph:
    """One pass, verified."""
    changed = run_pass(graph, profiles, ops)
    if changed is not graph:
        try:
            verify(changed, ops)
        except GraphError as error:
            raise GraphError(f"pass {name}: {error.message}") from error
    return changed
