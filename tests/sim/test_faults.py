"""Random workloads with random faults: every query ends exactly once, and nothing is lost or done twice.

Set STRETTO_FAULT_RUNS to run more than a normal run does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from support.faults import Death, FaultPlan, Refusal, Slowness
from support.fleets import FleetWatch
from support.outages import Outage
from support.random_faults import draw_faults
from support.run_log import RunLog

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from benchmarks.common.virtual_engines import PROFILES, documents, question
from stretto.apps import APPS
from stretto.apps.plan_cache import PlanCache
from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.kv_events import BlockRemoved, BlockStored, KVEvent
from stretto.cluster.messages import StopInstance
from stretto.costs.mean_output import num_tokens
from stretto.graph.passes.pipeline import PASSES
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import BadReply, ConfigError, EngineFailure, QueryEnded
from stretto.model.tasks import Decode, Done, LLMTask
from stretto.sched.actions import Action, Admit, StartBatch
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceLost, LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer, StepsDone
from stretto.sched.orders import ORDERS
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler_output

NUM_RUNS = int(os.environ.get("STRETTO_FAULT_RUNS", "6"))
ENGINES = ("chunking", "embedding", "vectors", "reranking", "llm")


@dataclass(frozen=True)
class Workload:
    """Queries, engines and model, drawn from a seed."""

    engines: list[Deployment]
    model: SimulatedModel
    queries: list[tuple[str, str, tuple[str, ...], dict[str, object], float, float | None]]
    jitter: float

    @property
    def faults_until_s(self) -> float:
        return self.queries[-1][4] + 10.0


def workload(seed: int) -> Workload:
    draw = random.Random(seed)
    policy = draw.choice(sorted(ORDERS))
    engines = []
    for name in ENGINES:
        is_llm = name == "llm"
        engine = deploy(
            name,
            FakeLLM if is_llm else FakeBatch,
            FakeLLMConfig() if is_llm else FakeBatchConfig(),
            contract="llm" if is_llm else "batch",
            instances=draw.randint(1, 3),
            policy=policy,
            timeout_s=draw.choice((4.0, 10.0)),
            max_attempts=draw.choice((3, 20)),
            max_running=draw.choice((2, 8)),
            keeps_state=name in ("llm", "vectors"),
            profile=PROFILES[name],
        )
        engines.append(engine)
    scheduler = SchedulerConfig(
        num_blocks=draw.choice((80, 400)),
        block_tokens=draw.choice((8, 16)),
        max_running=draw.choice((3, 8)),
        max_batch_tokens=draw.choice((64, 512)),
        policy=draw.choice(("chunked", "prefill_first")),
        level_s=draw.choice((0.5, 5.0)),
        with_events=True,
    )
    profile = PROFILES["llm"]

    def length(task: LLMTask, decode: Decode) -> int:
        return 1 + sum(f"{task.query}{task.step}{seed}".encode()) % 40

    model = SimulatedModel(
        scheduler,
        ProfileCost(profile),
        filler_output(length),
        max_jump=draw.choice((1, 16, 64)),
        keeps_released=False,
    )
    queries = []
    at_s = 0.0
    for number in range(draw.randint(2, 9)):
        at_s += draw.expovariate(draw.choice((0.5, 3.0)))
        passes = tuple(PASSES) if draw.random() < 0.7 else ()
        inputs: dict[str, object] = {
            "question": question(number),
            "files": documents(draw.randint(1, 20), seed=number),
        }
        deadline_s = at_s + draw.uniform(1.0, 20.0) if draw.random() < 0.1 else None
        queries.append((f"q{number}", draw.choice(sorted(APPS)), passes, inputs, at_s, deadline_s))
    return Workload(engines, model, queries, draw.choice((0.0, 0.2)))


@dataclass
class Checks(Observer):
    """An observer that checks the rules that must hold all the time."""

    num_steps: int = 0
    num_tokens: int = 0
    busy_until_s: dict[tuple[str, int], float] = field(default_factory=dict)
    batches: dict[tuple[str, int], int] = field(default_factory=dict)
    tasks: dict[int, LLMTask] = field(default_factory=dict)
    index: dict[tuple[str, int], set[BlockHash]] = field(default_factory=dict)
    written: set[tuple[str, str]] = field(default_factory=set)

    def on_steps(self, steps: StepsDone) -> None:
        """Check that steps of an instance come one after the other."""
        key = steps.engine, steps.instance
        assert steps.start_s >= self.busy_until_s.get(key, 0.0)
        assert list(steps.ends_s) == sorted(steps.ends_s)
        assert steps.ends_s[0] > steps.start_s or steps.num_tokens == 0  # all of it was cached
        self.busy_until_s[key] = steps.ends_s[-1]
        self.num_steps += len(steps.ends_s)

    def on_action(self, action: Action, now_s: float) -> None:
        match action:
            case StartBatch(engine, instance, batch):
                assert (engine, instance) not in self.batches
                self.batches[engine, instance] = batch
            case Admit(_, _, task):
                assert task.id not in self.tasks
                self.tasks[task.id] = task
            case StopInstance(engine, instance):
                self.batches.pop((engine, instance), None)
                self.index.pop((engine, instance), None)

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case BatchDone(engine, instance, batch) | BatchFailed(engine, instance, batch):
                assert self.batches.pop((engine, instance)) == batch
            case InstanceLost(engine, instance):
                self.batches.pop((engine, instance), None)
                self.index.pop((engine, instance), None)
            case LLMReport(_, _, Done(task_id, value, usage)):
                task = self.tasks[task_id]
                assert usage.num_prompt_tokens == sum(num_tokens(s.text) for s in task.prompt)
                if value is not None:
                    self.written.add((task.query, task.step))
                if isinstance(value, str):
                    assert num_tokens(value) == usage.num_output_tokens
                self.num_tokens += usage.num_output_tokens

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        held = self.index.setdefault((engine, instance), set())
        for event in events:
            match event:
                case BlockStored(chained):
                    held.add(chained)
                case BlockRemoved(chained):
                    held.remove(chained)


@dataclass(frozen=True)
class Change:
    """A change of a fleet, on purpose or not: a replica is added, drained or killed."""

    kind: str
    engine: str
    slot: int
    at_s: float


def draw_changes(seed: int, load: Workload) -> list[Change]:
    """Some changes of fleets; none for every fourth seed."""
    draw = random.Random(f"changes/{seed}")
    changes = []
    for _ in range(draw.choice((0, 4, 12, 40))):
        deployment = draw.choice(load.engines)
        kind = draw.choice(("add", "add", "finish", "suspend", "kill"))
        slot = draw.randrange(len(deployment.replicas))
        changes.append(Change(kind, deployment.name, slot, draw.uniform(0.0, load.faults_until_s)))
    return changes


def run(
    load: Workload,
    faults: FaultPlan,
    *observers: Observer,
    changes: Sequence[Change] = (),
    check: bool = False,
) -> VirtualDriver:
    profiles = {engine.name: engine.profile for engine in load.engines}
    plan_cache = PlanCache(profiles)
    driver = VirtualDriver(
        load.engines,
        seed=7,
        jitter=load.jitter,
        check=check,
        models={"llm": load.model},
        faults=faults,
        keeps=False,
        observers=observers,
    )
    replicas = {deployment.name: deployment.replicas[0] for deployment in load.engines}
    for change in changes:
        match change.kind:
            case "add":
                driver.add(change.engine, replicas[change.engine], change.at_s)
            case "kill":
                driver.lose(change.engine, change.slot, change.at_s)
            case "finish" | "suspend" as how:
                driver.drain(change.engine, change.slot, change.at_s, how)
    for query, app, passes, inputs, at_s, deadline_s in load.queries:
        egraph = plan_cache.plan(APPS[app](), {}, passes)
        driver.submit(query, egraph, inputs, at_s=at_s, deadline_s=deadline_s)
    driver.run()
    assert not driver.observers.dropped
    return driver


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_whatever_goes_wrong_every_query_ends_once_and_nothing_is_left(seed: int) -> None:
    load = workload(seed)
    instances = {deployment.name: len(deployment.replicas) for deployment in load.engines}
    names = [query for query, *_ in load.queries]
    faults = draw_faults(seed, instances, names, load.faults_until_s)
    changes = draw_changes(seed, load)
    checks, watch = Checks(), FleetWatch()
    driver = run(load, faults, checks, watch, changes=changes, check=seed % 5 == 0)  # each instant: slow
    watch.check_end()
    assert sorted(driver.replies) == sorted(names)
    undisturbed = Checks()
    plain = run(replace_deadlines(load), FaultPlan(), undisturbed)
    for name in names:
        reply = driver.replies[name]
        if reply.error is None:
            has_all = all(step in checks.written for step in undisturbed.written if step[0] == name)
            assert reply.outputs == plain.replies[name].outputs or not has_all, "only a `select` may differ"
        else:
            assert isinstance(reply.error, EngineFailure | QueryEnded | BadReply)
            assert faults != FaultPlan() or changes or isinstance(reply.error, QueryEnded)
    assert driver.system.is_idle()
    driver.system.check_invariants()
    for llm in driver.instances.stepped():
        llm.scheduler.check_invariants()
        assert llm.is_idle()
        assert llm.scheduler.pool.num_free == llm.scheduler.pool.num_blocks
    assert not any(checks.index.values()), "the news of every block that went has come"
    assert checks.num_tokens > 0 or any(reply.error for reply in driver.replies.values())


@pytest.mark.parametrize("seed", range(4))
def test_llms_that_refuse_again_and_again_end_every_query_once(seed: int) -> None:
    load = workload(seed)
    num_llms = next(len(deployment.replicas) for deployment in load.engines if deployment.name == "llm")
    draw = random.Random(f"refusals/{seed}")
    starts_s = [draw.uniform(0.0, load.faults_until_s) for _ in range(10)]
    refusals = [Refusal("llm", draw.randrange(num_llms), s, s + draw.uniform(0.0, 3.0)) for s in starts_s]
    refusals.append(Refusal("llm", 0, 0.0, load.queries[0][4] + 3.0))
    watch = FleetWatch()
    driver = run(load, FaultPlan(refusals=tuple(refusals)), watch)
    watch.check_end()
    assert watch.reached["suspected"] > 0
    assert driver.system.is_idle()
    driver.system.check_invariants()


def replace_deadlines(load: Workload) -> Workload:
    return replace(load, queries=[(*query[:5], None) for query in load.queries])


@pytest.mark.parametrize("seed", range(max(3, NUM_RUNS // 10)))
def test_the_same_seed_gives_the_same_run_byte_for_byte(seed: int) -> None:
    load = workload(seed)
    instances = {deployment.name: len(deployment.replicas) for deployment in load.engines}
    names = [query for query, *_ in load.queries]
    logs = []
    for fault_seed in (seed, seed, seed + 1):
        log = RunLog()
        faults = draw_faults(fault_seed, instances, names, load.faults_until_s)
        run(workload(seed), faults, log, changes=draw_changes(fault_seed, load))
        logs.append(log)
    assert "\n".join(logs[0].lines) == "\n".join(logs[1].lines)
    assert logs[0].digest == logs[1].digest
    assert len(logs[0].lines) > 100


def test_faults_of_one_seed_are_the_same_and_of_every_kind() -> None:
    plans = [draw_faults(seed, {"a": 2, "b": 1}, ["q"], 10.0) for seed in range(200)]
    assert plans == [draw_faults(seed, {"a": 2, "b": 1}, ["q"], 10.0) for seed in range(200)]
    assert FaultPlan() in plans
    for kind in ("deaths", "slow", "lost_messages", "kv_delay_s", "cancels", "refusals", "outages"):
        assert any(getattr(plan, kind) for plan in plans), kind
    assert any(death.back_s is not None for plan in plans for death in plan.deaths)


def test_changes_of_fleets_are_of_every_kind_and_sometimes_none() -> None:
    drawn = [draw_changes(seed, workload(seed)) for seed in range(40)]
    assert [] in drawn
    kinds = {change.kind for changes in drawn for change in changes}
    assert kinds == {"add", "finish", "suspend", "kill"}


def without_news(load: Workload) -> Workload:
    """The workload with a placement that does not go by what caches report."""
    engines = [
        replace(one, engine=replace(one.engine, placement="least_loaded")) if one.engine.is_llm else one
        for one in load.engines
    ]
    return replace(load, engines=engines)


def test_late_news_of_a_cache_comes_late() -> None:
    class Times(Observer):
        def __init__(self) -> None:
            self.stored_s: list[float] = []

        def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
            self.stored_s += [now_s for event in events if isinstance(event, BlockStored)]

    on_time, late = Times(), Times()
    load = without_news(workload(0))
    run(load, FaultPlan(), on_time)
    run(load, FaultPlan(kv_delay_s=2.5), late)
    assert on_time.stored_s
    assert late.stored_s == [at_s + 2.5 for at_s in on_time.stored_s]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Death("llm", 0, float("nan")),
        lambda: Death("llm", 0, 1.0, -1.0),
        lambda: Slowness("llm", 0, 0.0, float("inf"), 2.0),
        lambda: Slowness("llm", 0, 0.0, 1.0, 0.0),
        lambda: Refusal("llm", 0, 0.0, float("inf")),
        lambda: Outage("llm", 0, 0.0, 1.0, "silent", silence_s=-1.0),
        lambda: Outage("llm", 0, 0.0, 1.0, "tired"),  # type: ignore[arg-type]
        lambda: FaultPlan(kv_delay_s=-1.0),
        lambda: FaultPlan(cancels=(("q", float("nan")),)),
    ],
)
def test_a_fault_that_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()
