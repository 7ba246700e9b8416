"""Measures the CPU time of planning a query and of scheduling its chunks."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.common.virtual_engines import PROFILES, inputs, virtual_engines
from benchmarks.report import Row, Value, spread
from stretto.apps import advanced_rag, naive_rag
from stretto.apps.components.component import Input, parallel
from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Template
from stretto.cluster.messages import StartInstance
from stretto.components import Generation
from stretto.graph.compile import compile_graph
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.passes.weigh import WEIGHED
from stretto.model.deployment import Deployment
from stretto.sched.actions import Action
from stretto.sched.engine_events import AddInstance, InstanceReady
from stretto.sched.messages import Event, Submit
from stretto.sched.system import System
from stretto.sim.driver import VirtualDriver

PLANNING = "planning"
PLANNING_BY_CHUNKS = "planning, by chunks"
SCHEDULING_BY_CHUNKS = "scheduling, by chunks"
BUILDING = "building a template of parallel components"
_CALLS = 100
_PASSES = tuple(PASSES)


def plan_rows(repetitions: int) -> list[Row]:
    """Measure planning of each app: each step with a new `PlanCache` in a warm process, and a cached plan.

    Prompt files are read when an app is made, before the measurement.
    """
    rows: list[Row] = []
    for template in (naive_rag(), advanced_rag()):
        for name, step, calls in _steps(template):
            rows.append(Row(PLANNING, f"{template.name}: {name}", _times_us(step, repetitions, calls)))
    rows.append(
        Row(
            PLANNING,
            "Teola prototype: advanced RAG, build and passes",
            {"median_us": 1620.0},
            "quoted",
            "666 passages; super-linear in passages: the passes alone take 74 ms for 50,000",
        )
    )
    return rows


def _steps(template: Template) -> list[tuple[str, Callable[[], object], int]]:
    graph = template.lower({})
    optimised = optimise(graph, PROFILES, PASSES)
    plan_cache = PlanCache(PROFILES)
    plan_cache.plan(template, {}, _PASSES)
    return [
        ("lower", lambda: template.lower({}), 1),
        ("passes", lambda: optimise(graph, PROFILES, PASSES), 1),
        ("compile", lambda: compile_graph(optimised, PROFILES), 1),
        ("lower, passes, compile", lambda: PlanCache(PROFILES).plan(template, {}, _PASSES), 1),
        ("lower, weighed passes, compile", lambda: PlanCache(PROFILES).plan(template, {}, WEIGHED), 1),
        ("found in the cache", lambda: plan_cache.plan(template, {}, _PASSES), _CALLS),
    ]


def _times_us(step: Callable[[], object], repetitions: int, calls: int) -> dict[str, Value]:
    """Microseconds per call, from runs of `calls` calls, after a tenth as many to warm up."""
    times = []
    for number in range(repetitions + repetitions // 10):
        start = time.perf_counter()
        for _ in range(calls):
            step()
        if number >= repetitions // 10:
            times.append((time.perf_counter() - start) / calls * 1e6)
    return spread(times, "us")


def building_rows(repetitions: int, numbers: Sequence[int]) -> list[Row]:
    """Measure the CPU time of building a template whose components, LLM calls, run side by side."""
    rows = []
    for number in numbers:
        times_s = []
        for _ in range(repetitions):
            question = Input("question", "text")
            calls = [Generation(name=f"call{i}", question=question) for i in range(number)]
            outputs = {call.name: call["text"] for call in calls}
            gc.collect()
            start = time.process_time()
            Template("wide", parallel(*calls), outputs)
            times_s.append(time.process_time() - start)
        rows.append(Row(BUILDING, f"{number} components", spread(times_s, "s")))
    return rows


class TimedSystem(System):
    """Adds up the CPU time that the schedulers take once all instances are ready."""

    cpu_s = 0.0
    num_events = 0

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        super().__init__(deployments)
        _make_ready(self, deployments)
        self.cpu_s, self.num_events = 0.0, 0

    def handle(self, events: Sequence[Event], now_s: float) -> list[Action]:
        """Handle events, and measure the CPU time."""
        start = time.thread_time()
        actions = super().handle(events, now_s)
        self.cpu_s += time.thread_time() - start
        self.num_events += len(events)
        return actions


def _make_ready(system: System, deployments: Sequence[Deployment]) -> None:
    """Start every replica. Instances get the ids that a driver's system gives them."""
    added = [AddInstance(deployment.name, one) for deployment in deployments for one in deployment.replicas]
    started = [action for action in system.handle(added, 0.0) if isinstance(action, StartInstance)]
    system.handle([InstanceReady(action.engine, action.instance) for action in started], 0.0)


def chunk_rows(repetitions: int, chunks: Sequence[int]) -> list[Row]:
    """Measure planning, starting and scheduling one query of advanced RAG, for increasing numbers of
    chunks."""
    rows = []
    template = advanced_rag()
    for num_chunks in chunks:
        query = inputs(num_chunks)

        def plan_and_start(query: dict[str, object] = query) -> object:
            egraph = PlanCache(PROFILES).plan(template, {}, _PASSES)
            engines = virtual_engines()
            system = System(engines)
            _make_ready(system, engines)
            return system.handle([Submit("query", egraph, query)], 0.0)

        rows.append(Row(PLANNING_BY_CHUNKS, f"{num_chunks}", _times_us(plan_and_start, 30 * repetitions, 1)))
    for num_chunks in chunks[1:]:
        cpu_s, num_events = _schedule(template, num_chunks, repetitions)
        values = {"cpu_ms": cpu_s * 1e3, "us_per_chunk": cpu_s / num_chunks * 1e6, "events": num_events}
        rows.append(Row(SCHEDULING_BY_CHUNKS, f"{num_chunks}", dict(values)))
    return rows


def _schedule(template: Template, num_chunks: int, repetitions: int) -> tuple[float, int]:
    """Median CPU seconds of all schedulers for one query, without engines; and the number of events."""
    egraph = PlanCache(PROFILES).plan(template, {}, _PASSES)
    query = inputs(num_chunks)
    times, num_events = [], 0
    for _ in range(repetitions):
        gc.collect()
        engines = virtual_engines()
        driver = VirtualDriver(engines)
        driver.system = system = TimedSystem(engines)
        driver.submit("query", egraph, query)
        reply = driver.run()["query"]
        if reply.error is not None:
            raise reply.error
        times.append(system.cpu_s)
        num_events = system.num_events
    return statistics.median(times), num_events
