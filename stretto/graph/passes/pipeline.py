"""The table of optimisation passes, in the order they run, and functions that run them on a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from stretto.graph.graph import Graph
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Pass, Profiles
from stretto.graph.passes.drop_dead import drop_dead
from stretto.graph.passes.pipeline_decode import pipeline_decode
from stretto.graph.passes.prune_order import prune_order
from stretto.graph.passes.share_prefix import share_prefix
from stretto.graph.passes.split_prefill import split_prefill
from stretto.graph.passes.split_stages import split_stages
from stretto.graph.verify import verify
from stretto.model.errors import GraphError
from stretto.model.foreign import described, raised

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
"""Table of the passes that Stretto comes with, in the order they run."""

_MAX_SWEEPS = 100


def optimise(
    graph: Graph,
    profiles: Profiles,
    passes: Mapping[str, Pass],
    ops: Ops = OPS,
    *,
    begun: Graph | None = None,
) -> Graph:
    """Optimise a graph: run the rewriting functions `passes` in order, again and again until none changes the
    graph, and verify the result.

    `begun` is the graph after a first round of these passes, if that has been run.

    Verification is most of the cost, so only the final graph is verified. If that fails, the passes run again
    and each is verified, to find the one at fault.

    Raises:
        GraphError: a pass broke the graph, or the passes never come to an end; the message names them.
    """
    optimised = graph if begun is None else begun
    try:
        for _, changed in run_passes(optimised, profiles, passes, ops):
            optimised = changed
        if optimised is not graph:
            verify(optimised, ops)
    except Exception:
        for name, changed in run_passes(graph, profiles, passes, ops):
            _verify_after(name, changed, ops)
        raise
    return optimised


def run_passes(
    graph: Graph, profiles: Profiles, passes: Mapping[str, Pass], ops: Ops = OPS
) -> Iterator[tuple[str, Graph]]:
    """Yield (name of the pass, graph after it) for each pass that runs, until a whole round changes nothing.

    A pass may make work for an earlier one. Stretto's own passes seldom do: nearly all graphs need one sweep,
    and part of a second to find nothing to do.

    Raises:
        GraphError: a pass raised something, a sweep ended with the graph of an earlier one, or there are more
            than 100 sweeps.
    """
    seen: list[Graph] = []
    changers: list[set[str]] = []
    num_idle = 0
    while passes and len(seen) < _MAX_SWEEPS:
        if graph in seen:
            changing = set[str]().union(*changers[seen.index(graph) :])
            names = " and ".join(name for name in passes if name in changing)
            raise GraphError(f"{names} change {graph.name} back and forth and never end")
        seen.append(graph)
        changers.append(set())
        for name, run_pass in passes.items():
            changed = changed_by(name, run_pass, graph, profiles, ops)
            if changed is graph or changed == graph:
                num_idle += 1
            else:
                graph, num_idle = changed, 0
                changers[-1].add(name)
            yield name, graph
            if num_idle == len(passes):
                return
    if passes:
        names = " and ".join(name for name in passes if name in changers[-1])
        raise GraphError(f"after {_MAX_SWEEPS} sweeps {graph.name} is still changed by {names}")


def apply_pass(name: str, run_pass: Pass, graph: Graph, profiles: Profiles, ops: Ops = OPS) -> Graph:
    """Run one pass once on a graph, check that its result is a valid graph, and return that."""
    changed = changed_by(name, run_pass, graph, profiles, ops)
    if changed is not graph:
        _verify_after(name, changed, ops)
    return changed


def changed_by(name: str, run_pass: Pass, graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Return the graph after one run of a pass, perhaps a user's own.

    Raises:
        GraphError: it raised anything, or returned no graph.
    """
    try:
        changed: object = run_pass(graph, profiles, ops)
    except GraphError:
        raise
    except raised() as error:
        raise GraphError(f"pass {name} raised {described(error)}") from error
    if not isinstance(changed, Graph):
        raise GraphError(f"pass {name} returned a {type(changed).__name__}, not a Graph")
    return changed


def _verify_after(name: str, changed: Graph, ops: Ops) -> None:
    try:
        verify(changed, ops)
    except raised() as error:
        message = error.message if isinstance(error, GraphError) else described(error)
        raise GraphError(f"pass {name}: {message}") from error
