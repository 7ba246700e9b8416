"""Cost of orchestration.

The benchmark measures the cost per no-op primitive, next to other orchestrators in the same process, in turn;
with 16 queries in flight; by the place where the engine runs; for planning a query; and while a query only
waits. Nothing computes here, so all
measured time is overhead.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field

from benchmarks.overhead.peers import EXPECTED, NUM_NODES, PEERS, Peer, RunOnce, ours
from benchmarks.overhead.places import PLACES, place_rows
from benchmarks.overhead.planning import (
    BUILDING,
    PLANNING,
    PLANNING_BY_CHUNKS,
    SCHEDULING_BY_CHUNKS,
    building_rows,
    chunk_rows,
    plan_rows,
)
from benchmarks.overhead.pool import ADMISSIONS, POOL, pool_rows
from benchmarks.overhead.queues import QUEUES, queue_rows
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, spread
from stretto.apps.components.component import Input
from stretto.apps.template import Template
from stretto.engines.contract import BatchEngine
from stretto.model.deployment import deploy
from stretto.model.tasks import Task
from stretto.runtime.runtime import Runtime
from stretto.sched.orders import ORDERS

NODES = "chain of 10, then fan-out of 10"
IN_PARALLEL = "16 queries in flight"
WAITING = "CPU while a query waits for an engine"
IN_FLIGHT = 16

QUOTED = (
    Row(
        NODES,
        "Teola prototype (Ray)",
        {"median_us_per_node": 15_000.0, "p10_us_per_node": 14_000.0, "p90_us_per_node": 16_000.0},
        "quoted",
        "14-16 ms for each primitive of a chain, on 2 cores of a server CPU that others used too",
    ),
    Row(
        IN_PARALLEL,
        "Teola prototype (Ray)",
        {"median_nodes_per_s": 28.0},
        "quoted",
        "chains of 20 no-op primitives, on 2 cores of a server CPU that others used too",
    ),
    Row(
        WAITING,
        "Teola prototype (Ray)",
        {"cpu_share_of_a_core": 0.48},
        "quoted",
        "polling: 0.29 in the graph scheduler, 0.19 in the query's actor",
    ),
)


@dataclass(frozen=True, slots=True)
class OverheadSize:
    """Number of measurements, and numbers of chunks.

    Attributes:
        rounds: turns of each system.
        runs: runs of the workload in a turn.
        plans: measurements of each planning step.
        schedules: queries scheduled for each number of chunks.
        chunks: numbers of chunks in ascending order; the first one is for planning alone.
        components: numbers of parallel components of a template that is built, in ascending order.
        waiting: numbers of LLM requests that wait while others end.
        held: numbers of programs that are held for lack of room in KV memory.
        ends: number of measurements for each of them, and of those of `waiting`.
        waits: queries that wait for `block_s`.
    """

    rounds: int = 20
    runs: int = 40
    plans: int = 1000
    schedules: int = 7
    chunks: tuple[int, ...] = (10, 666, 20_000)
    components: tuple[int, ...] = (200, 2000)
    waiting: tuple[int, ...] = (100, 1000, 10_000)
    held: tuple[int, ...] = (100, 10_000)
    ends: int = 50
    waits: int = 5
    block_s: float = 1.0


QUICK = OverheadSize(rounds=8, runs=10, plans=200, schedules=3, ends=10, waits=3)


@dataclass(slots=True)
class _Series:
    peer: Peer
    run_once: RunOnce
    us_per_node: list[float] = field(default_factory=list)
    nodes_per_s: list[float] = field(default_factory=list)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: some minutes, or half a minute if `quick`."""
    return measure(QUICK if options.quick else OverheadSize(), options)


def measure(size: OverheadSize, options: BenchmarkOptions) -> Report:
    """Measure everything as often as `size` says."""
    options.say("planning")
    plans = plan_rows(size.plans)
    plans += building_rows(size.schedules, size.components)
    options.say("planning and scheduling, by the number of chunks")
    plans += chunk_rows(size.schedules, size.chunks)
    options.say("queues, by the number of requests that wait")
    plans += queue_rows(size.ends, size.waiting)
    options.say("the pool, by the number of programs that are held")
    plans += pool_rows(size.ends, size.held)
    rows, left_out = asyncio.run(_nodes(options, size.rounds, size.runs))
    rows += plans
    options.say("places where engines run")
    rows += asyncio.run(place_rows(size.rounds, size.runs))
    options.say("waiting")
    rows += asyncio.run(_waiting(size.waits, size.block_s))
    rows += QUOTED
    config = {**asdict(size), "in_flight": IN_FLIGHT, "quick": options.quick}
    notes = [
        "systems take turns, round by round, in one process and on one event loop, each warmed up before",
        "planning is measured before any other system is imported",
        "every run's result is checked; garbage is collected between turns, not switched off",
        "every system is set up once; a run of ours includes looking up the plan of its template",
    ]
    if left_out:
        notes.append(f"left out, not installed: {', '.join(left_out)} (pip install 'stretto[bench]')")
    return Report("overhead", options.seed, config, tuple(rows), _goals(rows, size), tuple(notes))


async def _nodes(options: BenchmarkOptions, rounds: int, runs: int) -> tuple[list[Row], list[str]]:
    left_out = []
    async with AsyncExitStack() as stack:
        series = []
        for peer in PEERS:
            module = peer.load()
            if module is None:
                left_out.append(peer.name)
                continue
            series.append(_Series(peer, await stack.enter_async_context(module.open_runner())))
        for one in series:
            await _measure(one, 2 * runs)
            await _measure_load(one, 2)
            one.us_per_node.clear()
            one.nodes_per_s.clear()
        for number in range(rounds):
            options.say(f"round {number + 1} of {rounds}")
            for one in series:
                gc.collect()
                await _measure(one, runs)
                await _measure_load(one, max(5, runs // 4))
    rows = [_node_row(one) for one in series]
    for one in series:
        rows.append(
            Row(IN_PARALLEL, one.peer.name, spread(one.nodes_per_s, "nodes_per_s"), note=one.peer.version())
        )
    return rows, left_out


def _node_row(one: _Series) -> Row:
    note = " ".join(part for part in (one.peer.version(), one.peer.note) if part)
    return Row(NODES, one.peer.name, spread(one.us_per_node, "us_per_node"), note=note)


async def _measure(one: _Series, runs: int) -> None:
    for _ in range(runs):
        start = time.perf_counter()
        result = await one.run_once()
        one.us_per_node.append((time.perf_counter() - start) / NUM_NODES * 1e6)
        _check(one.peer, result)


async def _measure_load(one: _Series, runs: int) -> None:
    async def client() -> None:
        for _ in range(runs):
            _check(one.peer, await one.run_once())

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
    one.nodes_per_s.append(IN_FLIGHT * runs * NUM_NODES / (time.perf_counter() - start))


def _check(peer: Peer, result: list[int]) -> None:
    if result != EXPECTED:
        raise AssertionError(f"{peer.name} answers {result}")


class _Blocking(BatchEngine):
    """A `BatchEngine` that blocks its thread for a while."""

    def __init__(self, block_s: float) -> None:
        self._block_s = block_s

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Block the thread."""
        time.sleep(self._block_s)
        return [0] * len(tasks)


async def _waiting(repetitions: int, block_s: float) -> list[Row]:
    """Measure the CPU time of the process while one query waits, submission and reply included."""
    call = ours.AddOne(value=Input("value", "number"))
    app = Template("waiting", call, {"value": call["value"]})
    shares = []
    async with Runtime([deploy("noop", _Blocking, block_s)]) as runtime:
        for _ in range(repetitions):
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            await runtime.run(app, {"value": 0})
            shares.append((time.process_time() - cpu_s) / (time.perf_counter() - wall_s))
    return [Row(WAITING, "stretto", {"cpu_share_of_a_core": statistics.median(shares)})]


def _goals(rows: Sequence[Row], size: OverheadSize) -> tuple[Goal, ...]:
    def value(table: str, name: str, column: str) -> float:
        found = next(row for row in rows if row.table == table and row.name == name).values[column]
        assert isinstance(found, int | float)
        return float(found)

    least, few, many = str(size.chunks[0]), str(size.chunks[1]), str(size.chunks[-1])
    most = f"{size.waiting[-1]} waiting"
    ends_us = [value(QUEUES, f"{policy}, {most}", "median_us") for policy in ORDERS]
    per_chunk = {n: value(SCHEDULING_BY_CHUNKS, n, "us_per_chunk") for n in (few, many)}
    start_us = {n: value(PLANNING_BY_CHUNKS, n, "median_us") for n in (least, many)}
    cold = value(PLANNING, "advanced_rag: lower, passes, compile", "median_us")
    build_s = value(BUILDING, f"{size.components[-1]} components", "median_s")
    cached = value(PLANNING, "advanced_rag: found in the cache", "median_us")
    return (
        Goal("µs per no-op primitive", value(NODES, "stretto", "median_us_per_node"), 25, "lower"),
        Goal(
            "µs per no-op primitive, traced",
            value(NODES, "stretto, traced", "median_us_per_node"),
            40,
            "lower",
        ),
        Goal(
            "primitives/s, 16 queries in flight",
            value(IN_PARALLEL, "stretto", "median_nodes_per_s"),
            50_000,
            "higher",
        ),
        Goal(
            "µs of CPU per no-op primitive in a thread",
            value(PLACES, "stretto, thread", "median_us_per_node"),
            20,
            "lower",
        ),
        Goal(
            "µs of CPU per no-op primitive in a process",
            value(PLACES, "stretto, process", "median_us_per_node"),
            50,
            "lower",
        ),
        Goal("ms to lower, optimise and compile advanced RAG", cold / 1000, 1.0, "lower"),
        Goal("µs to find a plan in the cache", cached, 50, "lower"),
        Goal(f"s to build a template of {size.components[-1]} components", build_s, 0.2, "lower"),
        Goal(f"plan and start, {many} chunks over {least}", start_us[many] / start_us[least], 1.5, "lower"),
        Goal(
            f"scheduler CPU per chunk, {many} chunks over {few}",
            per_chunk[many] / per_chunk[few],
            1.5,
            "lower",
        ),
        Goal(f"µs to end a request and admit the next, {most}, slowest order", max(ends_us), 100, "lower"),
        Goal(
            f"admissions/s of the pool, {size.held[-1]} held",
            value(POOL, f"{size.held[-1]} held", f"median_{ADMISSIONS}"),
            20_000,
            "higher",
        ),
        Goal("cores burnt while waiting", value(WAITING, "stretto", "cpu_share_of_a_core"), 0.01, "lower"),
    )
