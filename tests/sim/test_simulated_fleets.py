"""Instances that come and go in virtual time: no query notices more than it has to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import pytest
from support.early_placement import SoonestStart
from support.faults import FaultPlan
from support.fleets import FleetWatch
from support.machines import compiled

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto import DEFAULT
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import Load
from stretto.cluster.messages import DrainHow, StartInstance, StopInstance
from stretto.cluster.placement import Placement, PlacementEvent
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.costs.presets import load_preset
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import EngineUnavailable, StrettoError
from stretto.model.profile import Profile
from stretto.model.replica import Engine
from stretto.model.tasks import Decode, LLMTask
from stretto.sched.actions import Admit, Reprioritise, StartBatch
from stretto.sched.engine_events import InstanceReady
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.messages import Event
from stretto.sched.observer import Observer
from stretto.sched.orders import ORDERS
from stretto.sched.orders.order import Order, OrderConfig
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import LLMInstance, SimulatedModel
from stretto.sim.simulated_model import preset_models
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler_output

PROFILE = Profile(base_s=0.125, per_unit_s=0.015625, max_efficient_batch=4, per_output_s=0.0625)
EMBED = compiled("graph g(%xs: list[text])\n%v = embed(each %xs) : list[vector] @e\nreturn %v")
RULES = "The rules of this house are many and are to be read before all else. "
ANSWER = compiled(
    f"""
    graph answer(%q: text, %xs: list[text])
      %v = embed(each %xs) : list[vector] @e
      %h = prefill([c"{RULES}"]) : kv @llm
      %k = prefill([c"{RULES}", %q], hint=%h) : kv @llm
      %a = decode(%k) {{max_tokens=12}} : text @llm
      return %a, %v
    """
)
SAY = compiled(
    'graph s(%q: text)\n%k = prefill([c"Say ", %q]) : kv @llm\n%a = decode(%k) : text @llm\nreturn %a'
)


AHEAD = compiled(
    """
    graph ahead(%q: text)
      %h = prefill([c"Rules. "]) : kv @llm
      %x = call(%q) {result="text"} : text @e
      %k = prefill([c"Rules. ", %x], hint=%h) : kv @llm
      %a = decode(%k) {max_tokens=3} : text @llm
      return %a
    """
)
MANY = compiled(
    "graph many(%q: text)\n"
    + "".join(
        f'%k{i} = prefill([c"Say {i} ", %q]) : kv @llm\n%a{i} = decode(%k{i}) {{max_tokens=4}} : text @llm\n'
        for i in range(5)
    )
    + "return %a0, %a1, %a2, %a3, %a4"
)


def length(task: LLMTask, decode: Decode) -> int:
    return 1 + sum(task.query.encode()) % decode.max_tokens


def model(**changes: object) -> SimulatedModel:
    """A model with a cache that holds some prompts, and not all."""
    scheduler = SchedulerConfig(
        num_blocks=60, block_tokens=4, max_running=5, max_batch_tokens=32, with_events=True
    )
    made = SimulatedModel(scheduler, ProfileCost(PROFILE), filler_output(length), keeps_released=True)
    return replace(made, **changes)  # type: ignore[arg-type]


def batch(**changes: Any) -> Deployment:
    options: dict[str, Any] = {"profile": PROFILE, "timeout_s": 20.0, **changes}
    return deploy("e", FakeBatch, FakeBatchConfig(), **options)


def llm(**changes: object) -> Deployment:
    options = {"profile": PROFILE, "timeout_s": 20.0, "keeps_state": True, **changes}
    return deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", **options)  # type: ignore[arg-type]


def driver(*deployments: Deployment, **options: object) -> tuple[VirtualDriver, FleetWatch]:
    watch = FleetWatch()
    made = VirtualDriver(deployments, check=True, observers=[watch], **options)  # type: ignore[arg-type]
    return made, watch


def finish(run: VirtualDriver, watch: FleetWatch) -> None:
    """Run to the end, and check the rules that must hold then."""
    run.run()
    assert not run.observers.dropped
    watch.check_end()
    assert run.system.is_idle()
    for name, scheduler in run.system.schedulers.items():
        fleet = scheduler.instances.fleet
        assert {i: state for (engine, i), state in watch.state.items() if engine == name} == fleet.state
        assert set(fleet.live) == {i for engine, i in run.instances.replicas if engine == name}
    for instance in run.instances.stepped():
        assert instance.is_idle()
        instance.scheduler.check_invariants()


def end_s(run: VirtualDriver, query: str) -> float:
    found = run.recorder.queries[query].end_s
    assert found is not None
    return found


def error_of(run: VirtualDriver, query: str) -> StrettoError:
    error = run.replies[query].error
    assert error is not None
    return error


def time_of(draw: random.Random, until_s: float) -> float:
    """Draw a time. Every second time equals that of another change."""
    return draw.choice((draw.uniform(0.0, until_s), draw.randint(0, int(2 * until_s)) / 2))


def come_and_go(
    run: VirtualDriver, draw: random.Random, deployments: Iterable[Deployment], until_s: float
) -> None:
    """Add, drain and kill replicas at random; at the end one is added that stays."""
    for deployment in deployments:
        replica = deployment.replicas[0]
        for _ in range(draw.randint(1, 8)):
            at_s = time_of(draw, until_s)
            slot = draw.randrange(len(deployment.replicas))
            match draw.randrange(5):
                case 0 | 1:
                    run.add(deployment.name, replica, at_s)
                case 2:
                    run.drain(deployment.name, draw.randrange(4), at_s, "finish")
                case 3:
                    run.drain(deployment.name, draw.randrange(4), at_s, "suspend")
                case 4:
                    run.lose(deployment.name, slot, at_s)
        run.add(deployment.name, replica, until_s)


def seeds(num_few: int, num_all: int) -> list[Any]:
    """Return seeds, of which all but a few are left to the long tests."""
    return [pytest.param(seed, marks=[pytest.mark.long] * (seed >= num_few)) for seed in range(num_all)]


@pytest.mark.parametrize("is_simulated", [True, False])
@pytest.mark.parametrize("seed", seeds(2, 40))
def test_every_query_ends_once_and_as_if_nothing_had_been(seed: int, is_simulated: bool) -> None:
    draw = random.Random(seed)
    patient = {"no_replica_s": 1000.0, "recover_s": 1000.0, "max_attempts": 50}
    deployments = [
        batch(instances=draw.randint(1, 3), **patient),
        llm(instances=draw.randint(1, 3), max_running=draw.choice((2, 8)), **patient),
    ]
    arrivals = [(time_of(draw, 20.0), draw.choice((SAY, ANSWER, AHEAD, MANY))) for _ in range(25)]

    def play(*, is_calm: bool) -> tuple[VirtualDriver, FleetWatch]:
        models = {"llm": model(loading_s=draw.choice((0.0, 0.5)))} if is_simulated else None
        run, watch = driver(*deployments, models=models, jitter=0.2 * (seed % 2), seed=seed)
        for number, (at_s, egraph) in enumerate(arrivals):
            inputs = {"q": f"question {number}", "xs": list("abcdefg"[: 1 + number % 7])}
            wanted = {name: inputs[name] for name, _ in egraph.graph.inputs}
            run.submit(f"q{number}", egraph, wanted, at_s=at_s)
        if not is_calm:
            come_and_go(run, draw, deployments, 22.0)
        finish(run, watch)
        return run, watch

    calm, _ = play(is_calm=True)
    moved, _ = play(is_calm=False)
    assert moved.replies == calm.replies


@pytest.mark.parametrize("is_simulated", [True, False])
@pytest.mark.parametrize("seed", seeds(2, 10))
def test_queries_that_are_bound_early_end_once_too(seed: int, is_simulated: bool) -> None:
    draw = random.Random(seed)
    patient = {"no_replica_s": 1000.0, "recover_s": 1000.0, "max_attempts": 50}
    given = llm(instances=draw.randint(1, 3), max_running=draw.choice((2, 8)), placement="soonest", **patient)
    run, watch = driver(
        given,
        batch(),
        models={"llm": model()} if is_simulated else None,
        jitter=0.2 * (seed % 2),
        seed=seed,
        vocabulary=DEFAULT.with_placement("soonest", SoonestStart),
    )
    for number in range(25):
        egraph = draw.choice((SAY, AHEAD, MANY))
        run.submit(f"q{number}", egraph, {"q": f"question {number}"}, at_s=time_of(draw, 20.0))
    come_and_go(run, draw, [given], 22.0)
    finish(run, watch)
    assert all(reply.error is None for reply in run.replies.values())


def test_random_fleets_go_through_everything() -> None:
    """Otherwise the test above would say little."""
    draw = random.Random(1)
    deployments = [batch(instances=2), llm(instances=2, no_replica_s=100.0)]
    run, watch = driver(*deployments, models={"llm": model()})
    for number in range(80):
        run.submit(f"q{number}", SAY, {"q": f"question {number}"}, at_s=number * 0.5)
    for _ in range(8):
        come_and_go(run, draw, deployments, 40.0)
    finish(run, watch)
    wanted = ("started", "stopped", "lost", "suspended", "drained: finish", "drained: suspend")
    assert all(watch.reached[kind] for kind in wanted), watch.reached


# --- one after the other


def test_two_models_take_turns_on_one_device() -> None:
    """The first is drained, and the second added when it is gone; who asks too early waits."""
    first = llm(no_replica_s=math.inf)
    second = Deployment(Engine("other", contract="llm", no_replica_s=math.inf))
    slow = model(loading_s=5.0)
    run, watch = driver(first, second, models={"llm": slow, "other": slow})
    other = compiled(
        'graph o(%q: text)\n%k = prefill([c"Say ", %q]) : kv @other\n%a = decode(%k) : text @other\nreturn %a'
    )
    run.submit("1", SAY, {"q": "a"}, at_s=0.0)
    run.submit("2", other, {"q": "b"}, at_s=0.1)
    run.drain("llm", 0, 0.2)
    run.submit("3", SAY, {"q": "c"}, at_s=0.3)
    run.add("other", first.replicas[0], 30.0)
    run.drain("other", 0, 60.0)
    run.add("llm", first.replicas[0], 70.0)
    finish(run, watch)
    assert [reply.error for reply in run.replies.values()] == [None] * 3
    assert end_s(run, "1") < 30.0
    assert 35.0 < end_s(run, "2") < 60.0
    assert end_s(run, "3") > 75.0
    stops = [
        (action.engine, action.how, at_s) for at_s, action in run.actions if isinstance(action, StopInstance)
    ]
    assert stops == [("llm", "finish", end_s(run, "1")), ("other", "finish", 60.0)]


def test_the_last_replica_ends_its_work_and_then_there_is_none() -> None:
    run, watch = driver(batch(), llm())
    run.submit("runs", SAY, {"q": "a"}, at_s=0.0)
    run.drain("llm", 0, 0.1)
    run.submit("late", SAY, {"q": "b"}, at_s=0.2)
    run.submit("other", EMBED, {"xs": ["x"]}, at_s=0.3)
    finish(run, watch)
    assert run.replies["runs"].error is None
    assert run.replies["other"].error is None
    error = error_of(run, "late")
    assert isinstance(error, EngineUnavailable)
    assert str(error) == "step 'a': engine 'llm' has no instance that serves; it has no replica"
    assert end_s(run, "late") == 0.2, "nothing is to be hoped for"


@pytest.mark.parametrize(("no_replica_s", "is_answered"), [(4.9, False), (5.1, True)])
def test_requests_wait_for_a_replica_as_long_as_the_engine_says(
    no_replica_s: float, is_answered: bool
) -> None:
    given = batch(no_replica_s=no_replica_s)
    run, watch = driver(given)
    run.drain("e", 0, 1.0)
    run.submit("1", EMBED, {"xs": ["x"]}, at_s=2.0)
    run.add("e", given.replicas[0], 7.0)
    finish(run, watch)
    assert (run.replies["1"].error is None) == is_answered
    assert end_s(run, "1") == pytest.approx(7.140625 if is_answered else 6.9)


@pytest.mark.parametrize(("recover_s", "is_answered"), [(3.9, False), (4.1, True)])
def test_requests_wait_for_a_starting_instance_as_long_as_the_engine_says(
    recover_s: float, is_answered: bool
) -> None:
    run, watch = driver(llm(recover_s=recover_s), models={"llm": model(loading_s=5.0)})
    run.lose("llm", 0, 1.0)
    run.submit("1", SAY, {"q": "a"}, at_s=2.0)
    finish(run, watch)
    assert (run.replies["1"].error is None) == is_answered
    if not is_answered:
        assert end_s(run, "1") == 2.0 + recover_s
        assert "the last one was lost: llm/0 died" in str(error_of(run, "1"))


def test_a_query_with_a_deadline_waits_for_a_starting_instance_until_then() -> None:
    run, watch = driver(llm(recover_s=1.0), models={"llm": model(loading_s=5.0)})
    run.lose("llm", 0, 1.0)
    run.submit("patient", SAY, {"q": "a"}, at_s=2.0, deadline_s=50.0)
    run.submit("other", SAY, {"q": "a"}, at_s=2.0)
    finish(run, watch)
    assert run.replies["patient"].error is None
    assert isinstance(error_of(run, "other"), EngineUnavailable)


@pytest.mark.parametrize(("added_s", "is_answered"), [(3.0, True), (9.0, False)])
def test_a_prefill_ahead_that_no_instance_takes_fails_nothing(added_s: float, is_answered: bool) -> None:
    """The engine has no replica when the query comes; its reader comes after 5 s."""
    given = llm()
    run, watch = driver(given, batch(profile=Profile(base_s=5.0)))
    run.drain("llm", 0, 0.0)
    run.submit("1", AHEAD, {"q": "x"}, at_s=1.0)
    run.add("llm", given.replicas[0], added_s)
    finish(run, watch)
    assert (run.replies["1"].error is None) == is_answered
    assert is_answered or end_s(run, "1") == 6.0


def test_every_restart_is_a_new_instance_of_the_same_replica() -> None:
    fast, slow = (llm(profile=replace(PROFILE, per_output_s=s)).replicas[0] for s in (0.01, 0.1))
    given = Deployment(llm().engine, (fast, slow))
    run, watch = driver(given)
    for at_s in (1.0, 2.0, 3.0):
        run.lose("llm", 1, at_s)
    run.submit("1", SAY, {"q": "a"}, at_s=10.0)
    finish(run, watch)
    starts = [action for _, action in run.actions if isinstance(action, StartInstance)]
    assert [(start.instance, start.replica) for start in starts] == [
        (0, fast),
        (1, slow),
        (2, slow),
        (3, slow),
        (4, slow),
    ]
    assert watch.of("llm", "serving") == [0, 4]


def test_what_an_instance_was_doing_when_it_died_is_never_heard() -> None:
    """The answers would have come later; nothing of them reaches the schedulers."""
    run, watch = driver(batch(instances=1), llm(instances=1), models={"llm": model()})
    run.submit("1", ANSWER, {"q": "a", "xs": ["x", "y"]})
    for engine in ("e", "llm"):
        run.lose(engine, 0, 0.05)
    finish(run, watch)
    assert run.replies["1"].error is None
    work = [(a.engine, a.instance) for _, a in run.actions if isinstance(a, StartBatch | Admit)]
    assert set(work) == {("e", 0), ("e", 1), ("llm", 0), ("llm", 1)}


@pytest.mark.parametrize("at_s", [0.0, 0.75, 1.0, 1.5, 2.25, 3.0, 3.75])
@pytest.mark.parametrize("how", ["finish", "suspend"])
def test_ranks_that_change_while_an_instance_is_drained(at_s: float, how: DrainHow) -> None:
    """Requests start at these instants, which changes the ranks of those that wait at the instance."""
    profile = Profile(per_unit_s=0.25, per_output_s=0.25, max_efficient_batch=4)
    run, watch = driver(llm(instances=2, profile=profile, max_batch=8000, policy="least_work"))
    for query in ("1", "2"):
        run.submit(query, MANY, {"q": "x"})
    run.drain("llm", 0, at_s, how)
    finish(run, watch)
    assert all(reply.error is None for reply in run.replies.values())
    assert any(isinstance(action, Reprioritise) for _, action in run.actions)


class Starts(Observer):
    """An observer that notes when instances are ready."""

    def __init__(self) -> None:
        self.ready_s: list[float] = []

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, InstanceReady):
            self.ready_s.append(now_s)


def loading_s(run: VirtualDriver) -> list[float | None]:
    """Return the seconds of a start that the snapshot shows for each instance."""
    (engine,) = run.system.snapshot().engines
    return [instance.loading_s for instance in engine.instances]


@pytest.mark.parametrize("is_simulated", [True, False])
def test_a_start_takes_what_its_replica_predicts(is_simulated: bool) -> None:
    given = llm(loading_s=2.5)
    starts = Starts()
    models = {"llm": model(loading_s=40.0)} if is_simulated else None
    run = VirtualDriver([given], models=models, observers=[starts])
    run.add("llm", replace(given.replicas[0], loading_s=1.5), 0.5)
    run.lose("llm", 0, 1.0)
    assert loading_s(run) == [2.5]
    run.run()
    assert starts.ready_s == [0.0, 0.5 + 1.5, 1.0 + 2.5]
    assert loading_s(run) == [1.5, 2.5]


def test_a_start_takes_what_the_preset_measured_for_so_many_devices() -> None:
    (replica,) = llm().replicas
    starts = Starts()
    base = model()
    outputs = base.scheduler, base.output_source
    a100 = preset_models(load_preset("A100-80G"), "vicuna-13b-v1.5", *outputs)
    run = VirtualDriver([llm()], models={"llm": a100}, observers=[starts])
    for tp in (1, 2):
        run.add("llm", replace(replica, tp=tp), 0.0)
    assert loading_s(run) == [None], "there at once: nothing predicted, nothing measured"
    run.run()
    assert starts.ready_s == [0.0, 29.981, 49.634]
    assert loading_s(run) == [29.981, 29.981, 49.634], "the first is of the same replica as the second"
    a6000 = preset_models(load_preset("A6000"), "Mistral-7B", *outputs, loading_s=40.0)
    assert a6000(replica).loading_s == 40.0


# --- what instances hold


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_reports_of_caches_are_what_each_instance_holds(seed: int) -> None:
    """After a run in which instances came, went and died, and reports were late."""
    draw = random.Random(seed)
    given = llm(instances=2, no_replica_s=1000.0, max_attempts=50)
    faults = FaultPlan(kv_delay_s=draw.choice((0.0, 0.7)))
    run, watch = driver(given, batch(), models={"llm": model()}, faults=faults, jitter=0.1, seed=seed)
    for number in range(40):
        words = " ".join(f"{RULES}{number % draw.randint(1, 6)}" for _ in range(draw.randint(1, 3)))
        run.submit(f"q{number}", SAY, {"q": words}, at_s=draw.uniform(0.0, 30.0))
    run.drain("llm", 0, 15.0, draw.choice(("finish", "suspend")))
    run.lose("llm", 1, 20.0)
    come_and_go(run, draw, [given], 31.0)
    finish(run, watch)
    scheduler = run.system.schedulers["llm"]
    assert isinstance(scheduler, LLMScheduler)
    policy = scheduler._loads.policy.placement
    assert isinstance(policy, LeastSeconds)
    policy.reported.check_invariants()
    instances = {i: made for (_, i), made in run.instances.llms.items() if isinstance(made, LLMInstance)}
    assert set(instances) == set(scheduler.instances.fleet.live)
    for instance, made in instances.items():
        assert policy.reported.held_by(instance) == blocks_of(made)
    assert any(map(blocks_of, instances.values())), "they keep what fits"
    gone = set(scheduler.instances.fleet.state) - set(instances)
    assert gone
    assert all(not policy.reported.held_by(instance) for instance in gone)


def blocks_of(instance: LLMInstance) -> frozenset[bytes]:
    """Return the blocks that the prefix cache of an instance holds."""
    return frozenset(block for node in instance.scheduler.cache._tree.nodes() for block in node.hashes)


# --- code of a user's own that raises


class Fuse:
    """Raises at the third call of one method of an order or a placement policy, or event of the latter."""

    def __init__(self, at: str) -> None:
        self._at = at
        self.num_calls = 0

    def __call__(self, at: str) -> None:
        self.num_calls += at == self._at
        if at == self._at and self.num_calls == 3:
            raise ZeroDivisionError("a bug")

    def placement(self) -> Placement:
        fuse = self

        class Raising(SoonestStart):
            def load(self, instance: InstanceView) -> Load:
                fuse("load")
                return super().load(instance)

            def observe(self, event: PlacementEvent) -> None:
                fuse(type(event).__name__)
                super().observe(event)

        return Raising()

    def order(self, config: OrderConfig) -> Order:
        made = ORDERS["least_work"](config)

        class Raising:
            def __getattr__(self, name: str) -> Callable[..., object]:
                def call(*args: object) -> object:
                    fuse(name)
                    return getattr(made, name)(*args)

                return call

        fuse = self
        return cast(Order, Raising())


@pytest.mark.parametrize(
    "at",
    ["load", "Joined", "Left", "Bound", "Unbound", "Dispatched", "Ended", "add", "remove", "rank", "started"],
)
def test_code_of_ones_own_that_raises_hangs_no_query_and_keeps_no_instance(at: str) -> None:
    for seed in range(2):
        draw, fuse = random.Random(seed), Fuse(at)
        given = llm(instances=2, max_running=2, placement="raising", policy="raising", max_attempts=50)
        vocabulary = DEFAULT.with_placement("raising", fuse.placement).with_policy("raising", fuse.order)
        run, watch = driver(given, batch(), models={"llm": model()}, vocabulary=vocabulary)
        for number in range(12):
            run.submit(f"q{number}", draw.choice((SAY, MANY)), {"q": f"question {number}"}, at_s=number * 0.1)
            run.cancel(f"q{number}", number * 0.1 + 0.3 + 3.0 * (number % 2))
        come_and_go(run, draw, [given], 5.0)
        finish(run, watch)
        assert fuse.num_calls >= 3, "it has raised"
