"""The examples of the paper's introduction and motivation: Figures 1, 3 and 4, one query at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

from benchmarks.report import Row, Value
from benchmarks.teola.costs import PAPER_EMBEDDING
from benchmarks.teola.schemes import OURS, SCHEMES, Scheme
from benchmarks.teola.simulate import Ran, Testbed, run
from benchmarks.teola.tables import APPS, PAPER
from benchmarks.teola.workload import DatasetSizes, queries

BREAKDOWN = "Figure 1: where the time goes in a chain of modules, one query, 7B"
CHAIN = (
    "Figure 3: advanced RAG as a chain of modules and as a graph, one query, speeds of the paper's examples"
)
BATCH_SIZES = "Figure 4: batches of a request and of an app, one query, speeds of the paper's examples"
_MODULES = "LlamaDist-TO"
_NUM_CHUNKS = 48


def example_rows(known: Mapping[str, DatasetSizes], num_queries: int, seed: int) -> list[Row]:
    """Rows of all three figures, with the paper's own numbers beside them."""

    def alone(testbed: Testbed, scheme: Scheme, app: str) -> Ran:
        return run(testbed, scheme, queries(app, known, num_queries, 0.0, seed))

    return [*_breakdown(alone), *_chain(alone), *_batch_sizes(alone)]


def _breakdown(alone: Callable[[Testbed, Scheme, str], Ran]) -> list[Row]:
    rows = []
    for app in APPS:
        ran = alone(Testbed("7B"), SCHEMES[_MODULES], app)
        total_s = sum(ran.busy_s.values())
        shares: dict[str, Value] = {engine: busy_s / total_s for engine, busy_s in ran.busy_s.items()}
        shares["not_llm"] = (
            sum(s for engine, s in ran.busy_s.items() if not engine.startswith("llm")) / total_s
        )
        rows.append(Row(BREAKDOWN, app, shares, "simulated"))
    note = "in some cases, document question answering with RAG"
    return [*rows, Row(BREAKDOWN, PAPER, {"not_llm": "more than 0.5"}, "quoted", note)]


def _chain(alone: Callable[[Testbed, Scheme, str], Ran]) -> list[Row]:
    testbed = Testbed("7B", speeds="paper")
    chain_s, graph_s = (fmean(alone(testbed, SCHEMES[name], "advanced").every_s) for name in (_MODULES, OURS))
    values: dict[str, Value] = {"chain_s": chain_s, "graph_s": graph_s, "speed_up": chain_s / graph_s}
    quoted: dict[str, Value] = {"chain_s": 4.1, "graph_s": 2.4, "speed_up": 4.1 / 2.4}
    return [Row(CHAIN, OURS, values, "simulated"), Row(CHAIN, PAPER, quoted, "quoted")]


def _batch_sizes(alone: Callable[[Testbed, Scheme, str], Ran]) -> list[Row]:
    embed_s = {size: _NUM_CHUNKS / size * PAPER_EMBEDDING.batch_s(size) for size in (4, 16)}
    tree_s = {}
    for size in (2, 3):
        testbed = Testbed("7B", speeds="paper", llm_instances=1, max_running=size)
        tree_s[size] = fmean(alone(testbed, SCHEMES[OURS], "naive").every_s)
    return [
        Row(
            BATCH_SIZES,
            f"{_NUM_CHUNKS} chunks embedded by 4 and by 16",
            {"small_s": embed_s[4], "large_s": embed_s[16], "speed_up": embed_s[4] / embed_s[16]},
            "computed",
            "the profile is fitted to these two numbers of the paper",
        ),
        Row(
            BATCH_SIZES,
            "naive RAG, its three drafts two at a time and all at once",
            {"small_s": tree_s[2], "large_s": tree_s[3], "speed_up": tree_s[2] / tree_s[3]},
            "simulated",
            "all of the query, with 1 LLM instance; the paper's example is of its LLM calls alone",
        ),
        Row(
            BATCH_SIZES, f"{PAPER}: embedding", {"small_s": 1.8, "large_s": 1.35, "speed_up": 1.33}, "quoted"
        ),
        Row(BATCH_SIZES, f"{PAPER}: a tree by 2 and by depth", {"speed_up": 1.4}, "quoted"),
    ]
