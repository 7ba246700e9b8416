"""`stretto bench twin`: does the simulation of this machine tell what happens on it?

Every engine runs in a single-threaded process of its own. Costs are measured with each engine alone
(`twin_costs.py`), on the batches and requests that other queries of the same apps make. From these, and no
time of a whole query, the simulation tells how long each query takes (`twin_driver.py`). Then the same
queries run for real, each run several times, and under two policies. What is found, answered and generated is
the same in both; that is checked, too.

    alone      one query after the other
    together   Poisson arrivals that keep the busiest engine at work for `utilisation` of the time
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from stretto.bench.corpora import questions_about, some_documents
from stretto.bench.registry import Options
from stretto.bench.report import Report, Row, num_cores
from stretto.bench.teola.workload import templates
from stretto.bench.twin_compare import Cell, Run, agreement_rows, goals, ranking_rows
from stretto.bench.twin_costs import (
    MachineCosts,
    alone,
    choose_evenly,
    fit_batches,
    fit_requests,
    fit_steps,
    mean_error,
    measure_batches,
    measure_sharing,
    measure_steps_apart,
    request_s,
)
from stretto.bench.twin_driver import SharedCoresDriver, own_vectors, remembering
from stretto.core import Document
from stretto.costs.shape import model_of
from stretto.engine import Engine
from stretto.frontend.planner import Planner
from stretto.graph.compile import ExecutionGraph
from stretto.graph.passes.pipeline import select_passes
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.messages import Admit, StartBatch
from stretto.models import MINI
from stretto.runtime.runtime import Runtime
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import LLMModel
from stretto.sim.step_cost import ProfileCost
from stretto.tasks import LLMTask, Task

ALONE, TOGETHER = "alone", "together"
_PAUSE_S = 1000.0
_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done.

    Attributes:
        num_queries: of each app, in each run.
        measured: batches of each engine that are measured, `rounds` times.
        step_s: for measuring the LLM's steps.
    """

    num_queries: Mapping[str, int]
    policies: tuple[str, ...] = ("topology_aware", "per_invocation")
    repeats: int = 2
    utilisation: float = 0.7
    max_chars: int = 8_000
    answer_tokens: int = 24
    measured: int = 16
    rounds: int = 3
    step_s: float = 8.0


FULL = Size({"search": 20, "naive": 12, "advanced": 12})
QUICK = Size({"search": 4, "naive": 3, "advanced": 3}, max_chars=3_000, measured=8, rounds=1, step_s=4.0)


@dataclass(frozen=True, slots=True)
class Load:
    """Queries of one app: questions, and when each comes; None for one after the other."""

    app: str
    name: str
    questions: tuple[str, ...]
    at_s: tuple[float, ...] | None


def run_benchmark(options: Options) -> Report:
    """About five minutes on a quiet machine, or two when `quick`."""
    with _environment(_THREADS):
        return measure(QUICK if options.quick else FULL, options)


def measure(size: Size, options: Options) -> Report:
    """As large as `size` says."""
    source, documents = some_documents(options.data, size.max_chars)
    machine = Machine(size, documents)
    options.say("twin: which batches and requests the apps make")
    batches, requests = machine.rehearse(questions_about(documents, 3, options.seed + 1))
    costs = calibrate(machine, batches, requests, options)
    loads = machine.loads(costs, options.seed)
    options.say("twin: simulating")
    start_s = time.perf_counter()
    simulated = {
        (load.app, load.name, p): machine.simulate(load, p, costs) for load in loads for p in size.policies
    }
    simulating_s = time.perf_counter() - start_s
    measured = asyncio.run(run_all(machine, loads, options))
    cells = [Cell(*key, tuple(measured[key]), run) for key, run in simulated.items()]
    rows = [*agreement_rows(cells), *ranking_rows(cells), *_cost_rows(costs)]
    sharing = costs.sharing
    num_chars = sum(len(section.text) for document in documents for section in document.sections)
    notes = (
        f"{len(documents)} documents from {source}, {num_chars:,} characters, indexed anew by every query; "
        "one instance of every engine, one thread and process each",
        f"{sharing.cores} cores, processes not pinned: two busy ones are {sharing.of_two:.3f} times slower "
        f"each (measured), more than {sharing.cores} take turns; that of the schedulers is not counted",
        f"{TOGETHER}: the busiest engine, or all cores, at {size.utilisation:.0%} by the simulated work of "
        "queries alone",
        "the LLM is the small model that ships with Stretto, told the words of the stand-in",
        "spread: between the runs; error: against the mean of the runs; of fewer than 100 queries, the 99th "
        "percentile is the slowest",
        f"simulating all runs took {simulating_s:.1f} s",
    )
    return Report("twin", options.seed, _config(size), tuple(rows), goals(cells), notes)


class Machine:
    """The engines of this machine, in reality and in simulation, and the plans of the apps on them."""

    def __init__(self, size: Size, documents: Sequence[Document]) -> None:
        from stretto.bench.twin_llm import Script, ToldLLM
        from stretto.engines.local import llm_engine, local_engines, search_engines, vectors_engine
        from stretto.engines.prompt_tokens import PromptTokenizer
        from stretto.engines.transformer.engine import TransformerConfig

        self.size = size
        self.documents = list(documents)
        self.llm_config = TransformerConfig(MINI)
        self.script = Script(PromptTokenizer(MINI))
        llm = replace(llm_engine(None), executable=ToldLLM, config=self.llm_config)
        vectors = replace(vectors_engine(), executable=own_vectors, config=None)
        self.engines = [
            replace(engine, placement="process")
            for engine in (
                *local_engines(llm=llm, vectors=vectors),
                *search_engines(llm, None, documents)[1:],
            )
        ]
        self._simulated = remembering(self.engines)
        self._planner = Planner({engine.name: engine.profile for engine in self.engines})
        passes = select_passes("all")
        self.plans: dict[str, ExecutionGraph] = {
            app: self._planner.plan(template, _configuration(app, size), passes)
            for app, template in templates().items()
            if app in size.num_queries
        }

    def with_policy(self, policy: str) -> list[Engine]:
        """The engines, to be run for real."""
        return [replace(engine, policy=policy) for engine in self.engines]

    def inputs(self, app: str, question: str) -> dict[str, object]:
        """What a query brings."""
        inputs: dict[str, object] = {"question": question}
        return inputs if app == "search" else {**inputs, "files": self.documents}

    def rehearse(self, questions: Sequence[str]) -> tuple[dict[str, list[tuple[Task, ...]]], list[LLMTask]]:
        """Batches by engine, and requests, of a few queries that come alone and then at once, in virtual time
        with the profiles that come with the engines. No question may be one of those that are compared."""
        batches: dict[str, list[tuple[Task, ...]]] = {}
        requests: list[LLMTask] = []
        for policy in self.size.policies:
            profiles = {engine.name: ProfileCost(engine.profile) for engine in self.engines}
            engines = [replace(engine, policy=policy) for engine in self._simulated]
            models = {name: self._model(name, profiles[name]) for name in ("llm", "llm_small")}
            driver = VirtualDriver(engines, expand=self._planner.expand, models=models)
            for app, plan in self.plans.items():
                for number, question in enumerate(questions):
                    at_s = _PAUSE_S * (number == 0)
                    driver.submit(f"{policy}/{app}/{number}", plan, self.inputs(app, question), at_s=at_s)
            driver.run()
            for _, action in driver.actions:
                if isinstance(action, StartBatch):
                    batches.setdefault(action.engine, []).append(action.tasks)
                elif isinstance(action, Admit):
                    requests.append(replace(action.task, id=len(requests)))
        return batches, requests

    def loads(self, costs: MachineCosts, seed: int) -> list[Load]:
        """Both of every app. How fast queries come follows from the simulated work of one that is alone."""
        loads = []
        for app, count in self.size.num_queries.items():
            questions = tuple(questions_about(self.documents, count, seed + 2))
            load = Load(app, ALONE, questions, None)
            busy_s = self._work_s(load, costs)
            most_s = max(*busy_s.values(), sum(busy_s.values()) / costs.sharing.cores) / count
            gap_s = most_s / self.size.utilisation
            generator = random.Random(f"{app}/{seed}")
            at_s, arrivals = 0.0, []
            for _ in questions:
                arrivals.append(at_s)
                at_s += generator.expovariate(1 / gap_s)
            loads += [load, Load(app, TOGETHER, questions, tuple(arrivals))]
        return loads

    def simulate(self, load: Load, policy: str, costs: MachineCosts) -> Run:
        """Seconds of each query, and what it answers."""
        driver = self._driver(load, policy, costs)
        replies = driver.run()
        seconds, answers = [], []
        for number in range(len(load.questions)):
            query = driver.recorder.queries[f"{number}"]
            reply = replies[f"{number}"]
            if reply.error is not None:
                raise reply.error
            assert query.end_s is not None
            seconds.append(query.end_s - query.start_s)
            assert reply.outputs is not None
            answers.append(reply.outputs["answer"])
        return Run(tuple(seconds), tuple(answers))

    def _work_s(self, load: Load, costs: MachineCosts) -> dict[str, float]:
        """Seconds that each engine is at work, over all queries one after the other."""
        driver = self._driver(load, self.size.policies[0], costs)
        driver.run()
        busy_s: dict[str, float] = {}
        for _, action in driver.actions:
            if isinstance(action, StartBatch):
                engine = action.engine
                busy_s[engine] = busy_s.get(engine, 0.0) + costs.batches[engine](action)
        for engine, seconds in driver.steps_s.items():
            busy_s[engine] = busy_s.get(engine, 0.0) + seconds
        return busy_s

    def _driver(self, load: Load, policy: str, costs: MachineCosts) -> SharedCoresDriver:
        driver = SharedCoresDriver(
            [replace(engine, policy=policy) for engine in self._simulated],
            costs.sharing,
            expand=self._planner.expand,
            models={name: self._model(name, costs.steps) for name in ("llm", "llm_small")},
            batch_costs=costs.batches,
        )
        for number, question in enumerate(load.questions):
            at_s = number * _PAUSE_S if load.at_s is None else load.at_s[number]
            driver.submit(f"{number}", self.plans[load.app], self.inputs(load.app, question), at_s=at_s)
        return driver

    def _model(self, name: str, cost: Any) -> LLMModel:
        config = self.llm_config
        scheduler = SchedulerConfig(
            1 << 14,
            block_tokens=config.block_tokens,
            max_running=config.max_running,
            max_batch_tokens=config.max_batch_tokens,
        )
        return LLMModel(scheduler, cost, self.script.said, tokenize=self.script.prompt)


def calibrate(
    machine: Machine,
    batches: Mapping[str, Sequence[Sequence[Task]]],
    requests: Sequence[LLMTask],
    options: Options,
) -> MachineCosts:
    """What each engine costs alone, and what two cost each other."""
    import json

    from stretto.bench.twin_llm import measure_steps

    size = machine.size
    options.say("twin: measuring the LLM's steps")
    steps = measure_steps_apart(measure_steps, machine.llm_config, list(requests), (1, 2, 4, 8), size.step_s)
    step_cost = fit_steps(model_of("mini", json.loads((MINI / "config.json").read_text("utf-8"))), steps)
    errors = {"llm: steps": mean_error((step_cost.step_s(s.shape), s.seconds) for s in steps)}
    engines = {engine.name: engine for engine in machine.engines if engine.name in {*batches, "llm"}}
    options.say("twin: starting engines to be measured")
    with alone(engines.values()) as instances:
        fits = {}
        for name, made in batches.items():
            options.say(f"twin: measuring {name}")
            keeps_state = engines[name].keeps_state
            chosen = made if keeps_state else choose_evenly(made, size.measured)
            found = measure_batches(instances[name], chosen, rounds=size.rounds, keeps_state=keeps_state)
            fits[name] = fit_batches(found)
            errors[name] = mean_error((fits[name].seconds(tasks), seconds) for tasks, seconds in found)
        options.say("twin: measuring requests, and engines side by side")
        decoding = [task for task in requests if task.decode is not None]
        some = decoding[:: max(1, len(decoding) // size.measured)]
        llm = instances["llm"]
        llm.request_s(some[0])
        llm.forget([some[0].query])
        timed = []
        for task in some:
            timed.append(llm.request_s(task))
            llm.forget([task.query])
        cost = fit_requests(step_cost, timed, machine.llm_config.max_batch_tokens)
        errors["llm: requests"] = mean_error(
            (request_s(cost, usage, machine.llm_config.max_batch_tokens), seconds) for seconds, usage in timed
        )
        busiest = max(batches, key=lambda name: max(fits[name].seconds(tasks) for tasks in batches[name]))
        batch = max(batches[busiest], key=fits[busiest].seconds)
        sharing = measure_sharing(llm, some[:8], instances[busiest], batch, num_cores())
    return MachineCosts(fits, cost, sharing, errors)


async def run_all(
    machine: Machine, loads: Sequence[Load], options: Options
) -> dict[tuple[str, str, str], list[Run]]:
    """Every load under every policy, `repeats` times; policies take turns."""
    size = machine.size
    found: dict[tuple[str, str, str], list[Run]] = {}
    async with AsyncExitStack() as stack:
        options.say("twin: starting engines")
        runtimes = {
            policy: await stack.enter_async_context(Runtime(machine.with_policy(policy)))
            for policy in size.policies
        }
        for load in loads:
            warming = replace(load, questions=load.questions[:1], at_s=None)
            for runtime in runtimes.values():
                await run_load(runtime, machine, warming)
            for number in range(size.repeats):
                options.say(f"twin: {load.app}, {load.name}, {number + 1} of {size.repeats}")
                for policy in size.policies if number % 2 == 0 else size.policies[::-1]:
                    run = await run_load(runtimes[policy], machine, load)
                    found.setdefault((load.app, load.name, policy), []).append(run)
    return found


async def run_load(runtime: Runtime, machine: Machine, load: Load) -> Run:
    """For real."""
    plan = machine.plans[load.app]
    seconds = [0.0] * len(load.questions)
    answers: list[object] = [None] * len(load.questions)
    begin_s = time.perf_counter()

    async def ask(number: int, question: str) -> None:
        if load.at_s is not None:
            await asyncio.sleep(begin_s + load.at_s[number] - time.perf_counter())
        start_s = time.perf_counter()
        outputs = await runtime.run(plan, machine.inputs(load.app, question))
        seconds[number] = time.perf_counter() - start_s
        answers[number] = outputs["answer"]

    if load.at_s is None:
        for number, question in enumerate(load.questions):
            await ask(number, question)
    else:
        async with asyncio.TaskGroup() as group:
            for number, question in enumerate(load.questions):
                group.create_task(ask(number, question))
    return Run(tuple(seconds), tuple(answers))


def _configuration(app: str, size: Size) -> dict[str, dict[str, object]]:
    if app == "search":
        return {name: {"max_tokens": size.answer_tokens} for name in ("proxy", "answer")}
    return {"synthesis": {"max_tokens": size.answer_tokens}}


def _cost_rows(costs: MachineCosts) -> Iterator[Row]:
    for name, (error, count) in costs.errors.items():
        values = {"mean_error_percent": 100 * error, "measurements": count}
        yield Row("fitted costs, each engine alone", name, values)
    around = {
        "ms_per_request": 1e3 * costs.steps.per_request_s,
        "ms_per_token": 1e3 * costs.steps.per_token_s,
        "times_slower_beside_another": costs.sharing.of_two,
    }
    note = "about 0 and 1 on a machine that does nothing else; if not, it was too busy to measure on"
    yield Row("what the fits of steps leave out", "llm", around, note=note)


def _config(size: Size) -> dict[str, object]:
    return {**asdict(size), "num_queries": dict(size.num_queries)}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """For processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
