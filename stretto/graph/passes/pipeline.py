"""The passes, in the order they run, and `optimise`, which runs them."""

from __future__ import annotations

from collections.abc import Collection

from stretto.errors import ConfigError, GraphError
from stretto.graph.graph import Graph
from stretto.graph.passes.base import Pass, Profiles
from stretto.graph.passes.drop_dead import drop_dead
from stretto.graph.passes.pipeline_decode import pipeline_decode
from stretto.graph.passes.prune_order import prune_order
from stretto.graph.passes.share_prefix import share_prefix
from stretto.graph.passes.split_prefill import split_prefill
from stretto.graph.passes.split_stages import split_stages
from stretto.graph.verify import verify

PASSES: dict[str, Pass] = {
    "prune_order": prune_order,  # Teola pass 1
    "split_stages": split_stages,  # Teola pass 2
    "split_prefill": split_prefill,  # Teola pass 3
    "pipeline_decode": pipeline_decode,  # Teola pass 4
    "share_prefix": share_prefix,  # Parrot §5.3; after split_prefill, whose heads it merges
    "drop_dead": drop_dead,
}


def register_pass(name: str, function: Pass) -> None:
    """Append a pass of your own to the pipeline. It must keep the result and be idempotent.

    Raises:
        ConfigError: the name is taken.
    """
    if name in PASSES:
        raise ConfigError(f"pass {name!r} is registered already")
    PASSES[name] = function


def select_passes(names: str | Collection[str]) -> tuple[str, ...]:
    """Pass names in pipeline order, from "all", "none", "a,b,c" or a collection of names.

    Raises:
        ConfigError: there is no such pass.
    """
    if isinstance(names, str):
        names = {"all": tuple(PASSES), "none": ()}.get(names, [name.strip() for name in names.split(",")])
    if unknown := [name for name in names if name not in PASSES]:
        raise ConfigError(f"there is no pass {unknown[0]!r}; there are {', '.join(PASSES)}")
    return tuple(name for name in PASSES if name in names)


def optimise(graph: Graph, profiles: Profiles, passes: Collection[str]) -> Graph:
    """Run `passes` in pipeline order, once each; the result is verified.

    One sweep reaches the fixed point: no pass makes work for an earlier one. To verify once is most of
    the cost saved; if something is wrong, the passes are run again one by one to find the culprit.

    Raises:
        GraphError: a pass broke the graph; the message names the pass.
    """
    chosen = [(name, run_pass) for name, run_pass in PASSES.items() if name in passes]
    optimised = graph
    try:
        for _, run_pass in chosen:
            optimised = run_pass(optimised, profiles)
        if optimised is not graph:
            verify(optimised)
    except Exception:
        for name, run_pass in chosen:
            graph = apply_pass(name, run_pass, graph, profiles)
        raise
    return optimised


def apply_pass(name: str, run_pass: Pass, graph: Graph, profiles: Profiles) -> Graph:
    """One pass, verified."""
    changed = run_pass(graph, profiles)
    if changed is not graph:
        try:
            verify(changed)
        except GraphError as error:
            raise GraphError(f"pass {name}: {error.message}") from error
    return changed
