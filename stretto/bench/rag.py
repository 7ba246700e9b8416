"""`stretto bench rag`: the schemes of `stretto bench teola`, with the engines of this machine.

MiniLM embeddings, vectors in memory, BM25 for the web, and a random Llama that is told what to write
(`quoting.py`), so that it costs what a model costs and every scheme has the same work. The hand-written
scheme is an asyncio program (`hand_written/`); each of the others has a production runtime of its own.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeAlias

from stretto.bench.checkpoint import TINY, Shape, build_checkpoint
from stretto.bench.corpora import questions_about, some_documents
from stretto.bench.hand_written.programs import Program
from stretto.bench.hand_written.servers import serving
from stretto.bench.registry import Options
from stretto.bench.report import Goal, Report, Row, Value, quantile
from stretto.bench.teola.schemes import HAND_WRITTEN, OURS, PAPERS, SCHEMES, Scheme
from stretto.bench.teola.simulate import planned
from stretto.bench.teola.workload import templates
from stretto.core import Document, Hit
from stretto.engine import Engine
from stretto.runtime.runtime import Runtime

LATENCIES = "median seconds of a query, engines of this machine"
SPEED_UPS = "speed-up of ours, median of queries, engines of this machine"
SPREADS = "10th to 90th percentile of queries"
ALONE, TOGETHER = "alone", "together"

Ask: TypeAlias = Callable[[str, str], Awaitable[Mapping[str, object]]]
"""From an app and a question to its outputs."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done: `num_queries` one by one, then as many that arrive at random, `rounds` times."""

    apps: tuple[str, ...] = ("search", "naive", "advanced")
    schemes: tuple[str, ...] = tuple(SCHEMES)
    num_queries: int = 8
    rounds: int = 3
    max_chars: int = 16_000
    answer_tokens: int = 24
    shape: Shape = Shape()


QUICK = Size(num_queries=2, rounds=1, max_chars=3_000, answer_tokens=12, shape=TINY)


def run_benchmark(options: Options) -> Report:
    """Some minutes, or about one when `quick`."""
    return measure(QUICK if options.quick else Size(), options)


def measure(size: Size, options: Options) -> Report:
    """As large as `size` says."""
    source, documents = some_documents(options.data, size.max_chars)
    texts = [section.text for document in documents for section in document.sections]
    with tempfile.TemporaryDirectory(prefix="stretto-bench-") as folder:
        options.say("rag: building a checkpoint")
        checkpoint = build_checkpoint(Path(folder), texts, shape=size.shape, seed=options.seed)
        timed = asyncio.run(_run(size, checkpoint, documents, options))
    rows = [row for (app, load), by_scheme in timed.items() for row in _rows(app, load, by_scheme)]
    rows.sort(key=lambda row: (LATENCIES, SPEED_UPS, SPREADS).index(row.table))
    notes = (
        f"{len(documents)} documents from {source}, cut to {sum(map(len, texts)):,} characters; one instance"
        " of every engine, one thread each, all on the same cores: what can overlap is bounded by them",
        f"{TOGETHER}: Poisson arrivals, one for every 0.6 times that a query of ours takes alone; schemes"
        " take turns, and every scheme gets the same questions and arrivals",
        "the LLM is a random model that writes the words of the stand-in; search is in the same documents",
    )
    return Report("rag", options.seed, asdict(size), tuple(rows), _goals(timed), notes)


@dataclass(slots=True)
class _Timed:
    """What a scheme took for each query, and what it answered, in the order of the queries."""

    seconds: list[float] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)


_Results: TypeAlias = dict[tuple[str, str], dict[str, _Timed]]


async def _run(size: Size, checkpoint: Path, documents: list[Document], options: Options) -> _Results:
    results: _Results = {}
    async with AsyncExitStack() as stack:
        options.say("rag: loading models")
        asks: dict[str, Ask] = {}
        for scheme in (SCHEMES[name] for name in size.schemes):
            engines = _engines(scheme, checkpoint, documents)
            if scheme.name == HAND_WRITTEN:
                asks[scheme.name] = await _by_hand(stack, engines, documents, size)
            else:
                asks[scheme.name] = await _in_runtime(stack, scheme, engines, documents, size)
        for app in size.apps:
            questions = questions_about(documents, size.num_queries + 1, options.seed)
            for ask in asks.values():  # the first of each warms up
                await ask(app, questions[-1])
            options.say(f"rag: {app}, {ALONE}")
            results[app, ALONE] = await _alone(asks, app, questions[:-1])
            gap_s = 0.6 * statistics.median(results[app, ALONE][OURS].seconds)
            options.say(f"rag: {app}, {TOGETHER}")
            results[app, TOGETHER] = await _together(
                asks, app, questions[:-1], gap_s, size.rounds, options.seed
            )
    return results


def _engines(scheme: Scheme, checkpoint: Path, documents: Sequence[Document]) -> list[Engine]:
    from stretto.bench.quoting import QuotingLLM
    from stretto.engines.local import llm_engine, local_engines, search_engines
    from stretto.engines.reference import ReferenceConfig

    config = ReferenceConfig(checkpoint, max_cached_tokens=32_768 if scheme.caches else 0)
    llm = replace(llm_engine(None), executable=QuotingLLM, config=config, keeps_state=False)
    engines = [*local_engines(llm=llm), *search_engines(llm, None, documents)[1:]]
    return [replace(engine, policy=scheme.policy, fill_timeout_s=scheme.fill_timeout_s) for engine in engines]


async def _in_runtime(
    stack: AsyncExitStack, scheme: Scheme, engines: list[Engine], documents: list[Document], size: Size
) -> Ask:
    runtime = await stack.enter_async_context(Runtime(engines))
    apps = templates()
    plans = {
        app: planned(runtime.planner.plan(template, _configuration(app, size), scheme.passes), scheme)
        for app, template in apps.items()
    }

    async def ask(app: str, question: str) -> Mapping[str, object]:
        inputs: dict[str, object] = {"question": question}
        if app != "search":
            inputs["files"] = documents
        return await runtime.run(plans[app], inputs)

    return ask


def _configuration(app: str, size: Size) -> dict[str, dict[str, object]]:
    if app == "search":
        return {name: {"max_tokens": size.answer_tokens} for name in ("proxy", "answer")}
    return {"synthesis": {"max_tokens": size.answer_tokens}}


async def _by_hand(
    stack: AsyncExitStack, engines: list[Engine], documents: list[Document], size: Size
) -> Ask:
    servers = await stack.enter_async_context(serving(engines))
    numbers = count()
    batch = next(engine for engine in engines if engine.name == "embedding").batch_units

    async def ask(app: str, question: str) -> Mapping[str, object]:
        query = f"q{next(numbers)}"
        program = Program(servers, query, size.answer_tokens, batch)
        try:
            if app == "search":
                return await program.search(question)
            return await (program.naive if app == "naive" else program.advanced)(question, documents)
        finally:
            await servers.end(query)

    return ask


async def _alone(asks: Mapping[str, Ask], app: str, questions: Sequence[str]) -> dict[str, _Timed]:
    timed = {name: _Timed() for name in asks}
    names = list(asks)
    for number, question in enumerate(questions):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            await _time(asks[name], app, question, timed[name])
    return timed


async def _together(
    asks: Mapping[str, Ask], app: str, questions: Sequence[str], gap_s: float, rounds: int, seed: int
) -> dict[str, _Timed]:
    timed = {name: _Timed() for name in asks}
    names = list(asks)
    for number in range(rounds):
        generator = random.Random(f"{app}/{seed}/{number}")
        gaps_s = [generator.expovariate(1 / gap_s) for _ in questions]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            own = [_Timed() for _ in questions]
            async with asyncio.TaskGroup() as group:
                for question, one, wait_s in zip(questions, own, gaps_s, strict=True):
                    group.create_task(_time(asks[name], app, question, one))
                    await asyncio.sleep(wait_s)
            for one in own:
                timed[name].seconds += one.seconds
                timed[name].outputs += one.outputs
    return timed


async def _time(ask: Ask, app: str, question: str, timed: _Timed) -> None:
    start_s = time.perf_counter()
    outputs = await ask(app, question)
    timed.seconds.append(time.perf_counter() - start_s)
    sources = outputs["sources"]
    hits = sources if isinstance(sources, list) else []
    places = [(hit.chunk.source, hit.chunk.index) for hit in hits if isinstance(hit, Hit)]
    timed.outputs.append((outputs["answer"], places))


def _rows(app: str, load: str, timed: Mapping[str, _Timed]) -> list[Row]:
    outputs = [one.outputs for one in timed.values()]
    num_equal = sum(all(a == answers[0] for a in answers) for answers in zip(*outputs, strict=True))
    latencies: dict[str, Value] = {name: statistics.median(one.seconds) for name, one in timed.items()}
    latencies["equal_answers"] = f"{num_equal} of {len(outputs[0])}"
    ratios = {name: _ratios(timed, name) for name in timed if name != OURS}
    speed_ups: dict[str, Value] = {name: statistics.median(values) for name, values in ratios.items()}
    return [
        Row(LATENCIES, f"{app}, {load}", latencies),
        Row(SPEED_UPS, f"{app}, {load}", speed_ups),
        Row(SPREADS, f"{app}, {load}: seconds", {name: _spread(one.seconds) for name, one in timed.items()}),
        Row(SPREADS, f"{app}, {load}: speed-up", {name: _spread(values) for name, values in ratios.items()}),
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{quantile(values, 0.1):.2f}-{quantile(values, 0.9):.2f}"


def _ratios(timed: Mapping[str, _Timed], name: str) -> list[float]:
    """Query by query."""
    return [other / ours for other, ours in zip(timed[name].seconds, timed[OURS].seconds, strict=True)]


def _goals(results: _Results) -> tuple[Goal, ...]:
    def speed_ups(names: Sequence[str], load: str) -> list[float]:
        return [
            statistics.median(_ratios(timed, name))
            for (_, of_load), timed in results.items()
            for name in names
            if of_load == load and name in timed
        ]

    different = sum(
        any(answer != answers[0] for answer in answers)
        for timed in results.values()
        for answers in zip(*(one.outputs for one in timed.values()), strict=True)
    )
    goals = [Goal("queries that schemes answer differently", different, 0, "lower")]
    for whom, names in (("the paper's schemes", PAPERS), ("hand-written", (HAND_WRITTEN,))):
        for load in (ALONE, TOGETHER):
            if ratios := speed_ups(names, load):
                goals.append(Goal(f"least median speed-up over {whom}, {load}", min(ratios), 1.0, "higher"))
    return tuple(goals)
