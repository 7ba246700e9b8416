"""`stretto bench rag`: the schemes of `stretto bench teola`, with the engines of this machine.

The engines are MiniLM embeddings, vectors in memory, BM25 for the web, and a random Llama with scripted
output (`benchmarks/common/scripted_transformer.py`), so that it costs what a model costs and every scheme has
the same work. The hand-written scheme is an asyncio program (`hand_written/`); each other scheme has its own
runtime.

Rounds share nothing in caches (`runs.py`). Within a round, LlamaDist computes every prompt as a whole, and
the other schemes reuse what their queries share.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.common.checkpoint import TINY, Shape, build_checkpoint
from benchmarks.common.corpora import some_documents
from benchmarks.common.scripted_apps import fresh_questions
from benchmarks.rag.runs import Ask, Timed, as_they_arrive, asking, one_by_one
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from benchmarks.teola.schemes import CHOICES, HAND_WRITTEN, OURS, PAPERS, SCHEMES, Scheme
from stretto.model.values import Document
from stretto.trace.summary import quantile

LATENCIES = "median seconds of a query, engines of this machine"
SPEED_UPS = "speed-up of ours, median of queries, engines of this machine"
SPREADS = "10th to 90th percentile of queries"
ALONE, TOGETHER = "alone", "together"

_SCHEMES: Mapping[str, Scheme] = {**SCHEMES, **CHOICES}

Results: TypeAlias = dict[tuple[str, str], dict[str, Timed]]
"""Results by (app, workload), then by scheme."""


@dataclass(frozen=True, slots=True)
class RagSize:
    """Sizes of the benchmark.

    Attributes:
        num_queries: number of queries of each app that run one by one, and number of queries in each round.
        rounds: largest number of rounds, in which queries arrive at random; at least one is run.
        max_s: seconds for all queries; no round begins that would end later.
    """

    apps: tuple[str, ...] = ("search", "naive", "advanced")
    schemes: tuple[str, ...] = (*SCHEMES, *CHOICES)
    num_queries: int = 6
    rounds: int = 3
    max_s: float = 360.0
    max_chars: int = 16_000
    answer_tokens: int = 24
    shape: Shape = Shape()


QUICK = RagSize(num_queries=2, rounds=1, max_s=60.0, max_chars=3_000, answer_tokens=12, shape=TINY)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about seven minutes, or one if `quick`."""
    return measure(QUICK if options.quick else RagSize(), options)


def measure(size: RagSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    source, documents = some_documents(options.data, size.max_chars)
    texts = [section.text for document in documents for section in document.sections]
    with tempfile.TemporaryDirectory(prefix="stretto-bench-") as folder:
        options.say("rag: building a checkpoint")
        checkpoint = build_checkpoint(Path(folder), texts, shape=size.shape, seed=options.seed)
        timed = asyncio.run(_run(size, checkpoint, documents, options))
    rows = [row for (app, workload), by_scheme in timed.items() for row in _rows(app, workload, by_scheme)]
    rows.sort(key=lambda row: (LATENCIES, SPEED_UPS, SPREADS).index(row.table))
    counts = {
        f"{len(one.seconds)}"
        for (_, workload), of in timed.items()
        for one in of.values()
        if workload == TOGETHER
    }
    notes = (
        f"{len(documents)} documents from {source}, cut to {sum(map(len, texts)):,} characters; one instance"
        " of every engine, one thread each, all on the same cores: what can overlap is bounded by them",
        f"{ALONE}: {size.num_queries} queries of each app and scheme, one after the other; {TOGETHER}:"
        f" {' or '.join(sorted(counts, key=int))}, in rounds of {size.num_queries}, Poisson arrivals, one for"
        " every 0.6 times that a query of ours takes alone",
        "schemes take turns, and every scheme gets the same questions and arrivals; every round has its own"
        " questions and an empty prefix cache",
        "the LLM is a random model that writes the words of the stand-in; search is in the same documents",
    )
    return Report("rag", options.seed, asdict(size), tuple(rows), _goals(timed), notes)


async def _run(
    size: RagSize, checkpoint: Path, documents: list[Document], options: BenchmarkOptions
) -> Results:
    results: Results = {}
    async with AsyncExitStack() as stack:
        asks: dict[str, Ask] = {}
        for name in size.schemes:
            options.say(f"rag: loading models of {name}")
            asks[name] = await asking(stack, _SCHEMES[name], checkpoint, documents, size.answer_tokens)
        start_s = time.perf_counter()
        for number, app in enumerate(size.apps, 1):
            due_s = start_s + size.max_s * number / len(size.apps)
            results |= await run_app(asks, app, size, documents, due_s, options)
    return results


async def run_app(
    asks: Mapping[str, Ask],
    app: str,
    size: RagSize,
    documents: list[Document],
    due_s: float,
    options: BenchmarkOptions,
) -> Results:
    """Run both workloads of an app under all schemes. After `due_s` no round except the first begins."""

    def questions(workload: str) -> list[str]:
        return fresh_questions(documents, size.num_queries, f"{app}/{workload}/{options.seed}")

    options.say(f"rag: {app}, {ALONE}")
    await one_by_one(asks, app, questions("warm")[:1], "warm")
    alone = await one_by_one(asks, app, questions(ALONE), f"{app}/{ALONE}")
    gap_s = 0.6 * statistics.median(alone[OURS].seconds)
    together = {name: Timed() for name in asks}
    for number in range(size.rounds):
        options.say(f"rag: {app}, {TOGETHER}, {number + 1} of {size.rounds}")
        begin_s, workload = time.perf_counter(), f"{TOGETHER}/{number}"
        found = await as_they_arrive(asks, app, questions(workload), f"{app}/{workload}", gap_s, number)
        for name, one in found.items():
            together[name].add(one)
        now_s = time.perf_counter()
        if now_s + (now_s - begin_s) > due_s:  # the next one would end too late
            break
    return {(app, ALONE): alone, (app, TOGETHER): together}


def _rows(app: str, workload: str, timed: Mapping[str, Timed]) -> list[Row]:
    outputs = [one.outputs for one in timed.values()]
    num_equal = sum(all(a == answers[0] for a in answers) for answers in zip(*outputs, strict=True))
    latencies: dict[str, Value] = {name: statistics.median(one.seconds) for name, one in timed.items()}
    latencies["equal_answers"] = f"{num_equal} of {len(outputs[0])}"
    ratios = {name: _ratios(timed, name) for name in timed if name != OURS}
    speed_ups: dict[str, Value] = {name: statistics.median(values) for name, values in ratios.items()}
    return [
        Row(LATENCIES, f"{app}, {workload}", latencies),
        Row(SPEED_UPS, f"{app}, {workload}", speed_ups),
        Row(
            SPREADS,
            f"{app}, {workload}: seconds",
            {name: _spread(one.seconds) for name, one in timed.items()},
        ),
        Row(
            SPREADS,
            f"{app}, {workload}: speed-up",
            {name: _spread(values) for name, values in ratios.items()},
        ),
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{quantile(values, 0.1):.2f}-{quantile(values, 0.9):.2f}"


def _ratios(timed: Mapping[str, Timed], name: str) -> list[float]:
    """Ratios of the times of a scheme and of ours, query by query."""
    return [other / ours for other, ours in zip(timed[name].seconds, timed[OURS].seconds, strict=True)]


def _goals(results: Results) -> tuple[Goal, ...]:
    def speed_ups(names: Sequence[str], workload: str) -> list[float]:
        return [
            statistics.median(_ratios(timed, name))
            for (_, of_workload), timed in results.items()
            for name in names
            if of_workload == workload and name in timed
        ]

    different = sum(
        any(answer != answers[0] for answer in answers)
        for timed in results.values()
        for answers in zip(*(one.outputs for one in timed.values()), strict=True)
    )
    goals = [Goal("queries that schemes answer differently", different, 0, "lower")]
    whoms = {"the paper's schemes": PAPERS, "hand-written": (HAND_WRITTEN,)}
    whoms |= {name: (name,) for name in CHOICES}
    for whom, names in whoms.items():
        for workload in (ALONE, TOGETHER):
            if ratios := speed_ups(names, workload):
                goals.append(
                    Goal(f"least median speed-up over {whom}, {workload}", min(ratios), 1.0, "higher")
                )
    return tuple(goals)
