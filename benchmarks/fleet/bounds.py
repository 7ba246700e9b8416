"""Lower bounds of latencies on a fleet, which no program and no schedule can beat."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common.latency_bound import least_mean_s
from benchmarks.common.query_bound import QueryBound, lower_bound
from benchmarks.fleet.apps import APPS, summary_tree
from benchmarks.fleet.layout import Planned
from benchmarks.fleet.schemes import SIMULATED_OURS
from benchmarks.fleet.simulated import SimulatedFleet, inputs_of
from benchmarks.fleet.work import Asked
from benchmarks.teola.costs import ModelClass
from stretto.apps.components.builder import Builder
from stretto.graph.graph import Arg, Graph, Ref
from stretto.model.deployment import Deployment


def bounds(fleet: SimulatedFleet, app: str, asked: Sequence[Asked]) -> list[QueryBound]:
    """Return the lower bounds of each query, with prompts' constant beginnings in the caches."""
    return [
        lower_bound(_graph(app, one), inputs_of(app, one), _engines(fleet), is_warm=True) for one in asked
    ]


def least_mean_of(asked: Sequence[Asked], found: Sequence[QueryBound]) -> float:
    """Return a lower bound of the mean latency of queries with these arrivals."""
    return least_mean_s([one.at_s for one in asked], found)


def _engines(fleet: SimulatedFleet) -> list[Deployment]:
    """Return engines for one bound, whose vector store is empty."""
    planned: Planned = fleet.planned
    cost = planned.llm.simulated.cost
    least = ModelClass("", cost, planned.kv_tokens, "").least()
    return [
        engine.changed(profile=least) if engine.name == "llm" else engine
        for engine in fleet.engines(SIMULATED_OURS)
    ]


def _graph(app: str, asked: Asked) -> Graph:
    if app != "map_reduce":
        return APPS[app].template.lower(APPS[app].configuration)
    return unrolled_map_reduce(sum(len(document.passages) for document in asked.documents))


def unrolled_map_reduce(num_passages: int) -> Graph:
    """Return the app `map_reduce` for a known number of passages, without lists of prompts."""
    build = Builder()
    build.reserve("files")
    chunks = build.add("chunks", "chunk", (Arg("files", Ref("files"), each=True),), engine="chunking")
    answer = summary_tree(build, [Ref(chunks.name, index=place) for place in range(num_passages)])
    return Graph(
        "map_reduce",
        (("files", "list[document]"),),
        tuple(build.primitives),
        (),
        (("answer", answer),),
    )
