"""Placement policies under faults: no request is lost, and no counter is left.

Instances die and come back with empty caches, are slow, or refuse; what they report about their caches is
late, missing or doubled. Set STRETTO_FAULT_RUNS to run more seeds than a normal run does.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from support.faults import Death, FaultPlan
from support.fleets import FleetWatch
from support.random_faults import draw_faults

from benchmarks.baselines import PLACEMENTS
from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.apps.vocabulary import DEFAULT
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.kv_events import KVEvent
from stretto.cluster.placement import (
    Bound,
    Choice,
    Dispatched,
    Ended,
    Joined,
    Left,
    Placement,
    PlacementEvent,
    Unbound,
)
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.placements.e2 import E2
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Objective
from stretto.sched.observer import Observer
from stretto.sim.agent_load import request_graph
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler, filler_output, lengths_by_query

NUM_RUNS = int(os.environ.get("STRETTO_FAULT_RUNS", "6"))
PROFILE = Profile(base_s=0.01, per_unit_s=0.001, per_output_s=0.02, per_neighbour_s=0.001)
POLICIES = sorted(PLACEMENTS)
GRAPH = request_graph(40)


class Watched(Placement):
    """A placement policy whose events are counted."""

    def __init__(self, policy: Placement) -> None:
        self.policy = policy
        self.binds = policy.binds
        self.uses_keys = policy.uses_keys
        self.there: set[int] = set()
        self.waiting: dict[int, tuple[int, PlacementRequest]] = {}
        self.running: dict[int, tuple[int, PlacementRequest]] = {}
        self.num = Counter[str]()
        self.choices: list[Choice] = []

    def load(self, instance: InstanceView) -> Load:
        return self.policy.load(instance)

    def admits(self, request: PlacementRequest, view: InstanceView, now_s: float) -> bool:
        return self.policy.admits(request, view, now_s)

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        choice = self.policy.choose(request, instances, now_s)
        self.choices += [] if choice is None else [choice]
        return choice

    def observe(self, event: PlacementEvent) -> None:
        self.num[type(event).__name__] += 1
        match event:
            case Joined(instance):
                assert instance not in self.there
                self.there.add(instance)
            case Left(instance):
                self.there.remove(instance)
            case Bound(instance, request):
                assert id(request) not in self.waiting
                self.waiting[id(request)] = instance, request
            case Unbound(instance, request):
                assert self.waiting.pop(id(request)) == (instance, request)
            case Dispatched(instance, request):
                assert id(request) not in self.running
                self.running[id(request)] = instance, request
            case Ended(instance, request):
                assert self.running.pop(id(request)) == (instance, request)
        self.policy.observe(event)

    def check_end(self) -> None:
        """Check that nothing is left of any request."""
        assert not self.waiting
        assert not self.running
        if isinstance(self.policy, ScoredPlacement):
            index = self.policy.index
            index.check_invariants()
            assert all(member.num_running == 0 and not member.sent for member in index.members.values())
            assert set(index.members) == self.there
        if isinstance(self.policy, E2):
            self.policy.check_invariants()
            assert self.policy.num_waiting == 0


@dataclass(frozen=True)
class Prompts:
    """Requests with shared prefixes, drawn from a seed: name, prompt, length of the answer, arrival."""

    requests: Sequence[tuple[str, str, int, float]]
    num_instances: int
    with_events: bool
    policy: str

    @property
    def until_s(self) -> float:
        return self.requests[-1][3] + 5.0


def draw_load(seed: int) -> Prompts:
    draw = random.Random(f"load/{seed}")
    prefixes = [filler(f"prefix {number}", draw.choice((20, 100, 300))) for number in range(4)]
    requests, at_s = [], 0.0
    rate_per_s = draw.choice((2.0, 10.0, 40.0))
    for number in range(draw.randint(20, 50)):
        at_s += draw.expovariate(rate_per_s)
        text = draw.choice(prefixes) + " " + filler(f"own {number}", draw.choice((1, 10, 80)))
        requests.append((f"q{number}", text, draw.randint(1, 20), at_s))
    policy = POLICIES[seed % len(POLICIES)]
    return Prompts(requests, draw.randint(2, 4), seed // len(POLICIES) % 2 == 0, policy)


def draw_placement_faults(seed: int, load: Prompts, *, with_cancels: bool) -> FaultPlan:
    """Faults of all kinds that placement meets; without messages that are lost, which only a timeout ends."""
    draw = random.Random(f"kv/{seed}")
    names = [name for name, *_ in load.requests] if with_cancels else []
    faults = draw_faults(seed, {"llm": load.num_instances}, names, load.until_s)
    missed, doubled = (frozenset(draw.sample(range(60), draw.choice((0, 5, 20)))) for _ in range(2))
    return replace(faults, lost_messages={}, missed_kv={"llm": missed}, doubled_kv={"llm": doubled})


def run(
    load: Prompts, faults: FaultPlan, *observers: Observer, check: bool = False
) -> tuple[VirtualDriver, Watched]:
    engine = deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        contract="llm",
        instances=load.num_instances,
        placement="watched",
        max_running=4,
        max_attempts=100,
        keeps_state=True,
        timeout_s=None,
        profile=PROFILE,
        kv_tokens=1600,
    )
    scheduler = SchedulerConfig(
        100, block_tokens=16, max_running=4, max_batch_tokens=128, with_events=load.with_events
    )
    lengths = {name: length for name, _, length, _ in load.requests}
    model = SimulatedModel(
        scheduler, ProfileCost(PROFILE), filler_output(lengths_by_query(lengths)), keeps_released=True
    )
    made: list[Watched] = []

    def watched() -> Placement:
        made.append(Watched(PLACEMENTS[load.policy]()))
        return made[-1]

    driver = VirtualDriver(
        [engine],
        models={"llm": model},
        faults=faults,
        keeps=False,
        check=check,
        observers=observers,
        vocabulary=DEFAULT.with_placement("watched", watched),
    )
    for number, (name, text, _, at_s) in enumerate(load.requests):
        objective: Objective = "throughput" if number % 4 else "latency"
        driver.submit(name, GRAPH, {"prompt": text}, at_s=at_s, objective=objective)
    driver.run()
    assert not driver.observers.dropped
    return driver, made[-1]


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_whatever_goes_wrong_nothing_is_lost_and_no_counter_is_left(seed: int) -> None:
    load = draw_load(seed)
    with_cancels = seed % 3 == 0
    faults = draw_placement_faults(seed, load, with_cancels=with_cancels)
    watch = FleetWatch()
    driver, policy = run(load, faults, watch, check=seed % 5 == 0)
    watch.check_end()
    policy.check_end()
    driver.system.check_invariants()
    assert driver.system.is_idle()
    plain, _ = run(load, FaultPlan())
    cancelled = {name for name, _ in faults.cancels}
    for name, *_ in load.requests:
        reply = driver.replies[name]
        assert reply.error is None or name in cancelled, "nothing is lost"
        if reply.error is None:
            assert reply.outputs == plain.replies[name].outputs
    if not (faults.deaths or faults.refusals or faults.outages or cancelled):
        assert policy.num["Dispatched"] == len(load.requests), "nothing is done twice"


@pytest.mark.parametrize("name", ["stretto", "e2", "lmetric"])
def test_an_instance_that_comes_back_has_an_empty_cache(name: str) -> None:
    """The same prompt comes again and again. After its holder has died, the new instance in its place is not
    believed to hold it.
    """
    requests = [(f"q{n}", filler("prefix", 300) + f" {n}", 2, 1.0 * n) for n in range(20)]
    load = Prompts(requests, 2, with_events=False, policy=name)
    _, undisturbed = run(load, FaultPlan())
    home = undisturbed.choices[0].instance
    driver, disturbed = run(load, FaultPlan(deaths=(Death("llm", home, 9.5, 9.6),)))
    assert all(reply.error is None for reply in driver.replies.values())
    disturbed.check_end()
    held = [choice.held_tokens for choice in disturbed.choices]
    assert len(held) == 20
    assert all(choice.held_tokens >= 256 for choice in undisturbed.choices[1:])
    assert held[10] == 0, "nobody else held it"
    assert min(held[1:10] + held[11:]) >= 256
    assert home not in [choice.instance for choice in disturbed.choices[10:]], "it has a new number"


def test_reports_that_are_missed_or_doubled_come_never_or_twice() -> None:
    class Reports(Observer):
        def __init__(self) -> None:
            self.reports: list[tuple[KVEvent, ...]] = []

        def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
            self.reports.append(tuple(events))

    load = replace(draw_load(0), policy="round_robin", with_events=True)
    plain, faulty = Reports(), Reports()
    run(load, FaultPlan(), plain)
    run(load, FaultPlan(missed_kv={"llm": frozenset({0, 2})}, doubled_kv={"llm": frozenset({1})}), faulty)
    first = plain.reports
    assert faulty.reports == [first[1], first[1], *first[3:]]
