"""A prefix policy in one class, put in with one line, in both drivers.

It sends a request where the beginning of its prompt is held, or will be, unless waiting there costs more than
computing the prompt again. A request that waits moves when that saves more than a margin.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import mean

import pytest
from support.faults import FaultPlan, Slowness
from support.machines import compiled
from support.runtime_engines import Log, Server
from support.virtual_loop import in_virtual_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from stretto import DEFAULT, Runtime
from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.held_blocks import HeldBlocks
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.kv_events import BlockRemoved, BlockStored
from stretto.cluster.messages import InstanceId, KVReport
from stretto.cluster.placement import (
    Binds,
    Bound,
    Choice,
    Dispatched,
    Ended,
    Joined,
    KeyUse,
    Left,
    Placement,
    PlacementEvent,
    Unbound,
)
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prompt_keys import BYTES
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.sched.actions import Action, Admit, Reply
from stretto.sched.observer import Observer
from stretto.sched.vocabulary import Vocabulary
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler, filler_output


class LongestPrefix(Placement):
    """Seconds of waiting, of the missing prefill and of the decode, and a margin for moving."""

    binds: Binds = "early"
    uses_keys: KeyUse = "always"
    margin_s = 0.05
    max_holders = 4

    def __init__(self) -> None:
        self._held = HeldBlocks()
        self._coming = HeldBlocks()
        self._spaces: dict[InstanceId, str] = {}

    def load(self, instance: InstanceView) -> Load:
        return instance.backlog_s, instance.num_running

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        room = instances.room_for(request.all_tokens)
        options = {view.id: view for view in self.least_loaded(instances, room, now_s)}
        for instance in (*self._holders(request), request.bound_to):
            if instance is not None and self.may_take(instances, instance, room):
                view = instances.get(instance)
                assert view is not None
                options[instance] = view
        choices = [self._price(request, view, now_s) for view in options.values()]
        return min(choices, key=lambda choice: (sum(choice.terms.values()), choice.instance), default=None)

    def observe(self, event: PlacementEvent) -> None:
        match event:
            case Joined(instance, space):
                self._spaces[instance] = space
            case Bound(instance, request) | Dispatched(instance, request):
                self._coming.apply(instance, map(_stored, self._blocks(request, instance)))
            case Unbound(instance, request) | Ended(instance, request):
                self._coming.apply(instance, map(BlockRemoved, self._blocks(request, instance)))
                if isinstance(event, Ended) and self._spaces.get(instance) == BYTES.name:
                    self._held.apply(instance, map(_stored, self._blocks(request, instance)))
            case KVReport(instance=instance, events=events):
                self._held.apply(instance, events)
            case Left(instance):
                del self._spaces[instance]
                self._held.forget(instance)
                self._coming.forget(instance)

    def least_loaded(self, instances: InstanceTable, room: int, now_s: float) -> list[InstanceView]:
        return instances.hosts(room, now_s)

    def may_take(self, instances: InstanceTable, instance: InstanceId, room: int) -> bool:
        return instances.can_host(instance, room)

    def _price(self, request: PlacementRequest, view: InstanceView, now_s: float) -> Choice:
        blocks, key = self._blocks(request, view.id), request.keys.get(view.space)
        num_held = max(self._held.num_held(view.id, blocks), self._coming.num_held(view.id, blocks))
        held = min(request.num_tokens, int(num_held * key.block_tokens)) if key else 0
        decode_s = view.profile.decode_s(min(view.num_running + 1, view.num_slots)) * request.expected_output
        prefill_s = view.slowness * view.profile.batch_s(request.num_tokens - held)
        terms = {
            "start_s": request.start_s(view, now_s),
            "prefill_s": prefill_s,
            "decode_s": view.slowness * decode_s,
            "delay_s": view.num_decoding * prefill_s,
            "move_s": self.margin_s if request.bound_to not in (None, view.id) else 0.0,
        }
        return Choice(view.id, held, terms, f"holds {held} of {request.num_tokens} tokens")

    def _holders(self, request: PlacementRequest) -> Iterable[InstanceId]:
        for key in request.keys.values():
            for held in (self._held, self._coming):
                yield from held.holders(key.blocks, self.max_holders)

    def _blocks(self, request: PlacementRequest, instance: InstanceId) -> Sequence[BlockHash]:
        key = request.keys.get(self._spaces.get(instance, ""))
        return key.blocks if key else ()


def _stored(block: BlockHash) -> BlockStored:
    return BlockStored(block, b"", ())


class LongestPrefixForGood(LongestPrefix):
    """The same, bound once; for comparison."""

    binds: Binds = "final"


class LongestPrefixLate(LongestPrefix):
    """The same among instances that have room; for comparison."""

    binds: Binds = "late"

    def least_loaded(self, instances: InstanceTable, room: int, now_s: float) -> list[InstanceView]:
        return instances.candidates(room, now_s)

    def may_take(self, instances: InstanceTable, instance: InstanceId, room: int) -> bool:
        return instances.has_room(instance, room)


WITH_PREFIXES = DEFAULT.with_placement("longest_prefix", LongestPrefix)
ALL = WITH_PREFIXES.with_placement("for_good", LongestPrefixForGood).with_placement("late", LongestPrefixLate)

ANSWER = compiled(
    """
    graph answer(%rules: text, %q: text)
      %k = prefill([%rules, %q]) : kv @llm
      %a = decode(%k) {max_tokens=40} : text @llm
      return %a
    """
)


class Admitted(Observer):
    """Where each query went, and why."""

    def __init__(self) -> None:
        self.places: dict[str, Admit] = {}

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            self.places[action.task.query] = action

    def instance(self, query: str) -> InstanceId:
        return self.places[query].instance

    def num_moved(self) -> int:
        return sum(admit.reason.startswith("moved") for admit in self.places.values())


# --- the simulator

PROFILE = Profile(per_unit_s=0.0004, per_output_s=0.02, per_neighbour_s=0.001)
SCHEDULER = SchedulerConfig(
    num_blocks=400, block_tokens=16, max_running=8, max_batch_tokens=512, with_events=True
)
MODEL = SimulatedModel(SCHEDULER, ProfileCost(PROFILE), filler_output(as_max_tokens), keeps_released=True)
PREFIX_TOKENS, QUESTION_TOKENS = 600, 40
NO_FAULTS = FaultPlan()


def simulated(
    placement: str,
    *,
    vocabulary: Vocabulary = ALL,
    model: SimulatedModel = MODEL,
    faults: FaultPlan = NO_FAULTS,
    check: bool = True,
) -> tuple[VirtualDriver, Admitted]:
    """Four equal instances that run eight sequences each."""
    llm = deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        contract="llm",
        instances=4,
        placement=placement,
        profile=PROFILE,
        max_running=8,
        kv_tokens=6400,
        timeout_s=None,
    )
    seen = Admitted()
    driver = VirtualDriver(
        [llm],
        models={"llm": model},
        vocabulary=vocabulary,
        observers=[seen],
        faults=faults,
        check=check,
    )
    return driver, seen


def ask(driver: VirtualDriver, query: str, rules: int, at_s: float) -> None:
    inputs = {"rules": filler(f"rules {rules}", PREFIX_TOKENS), "q": filler(query, QUESTION_TOKENS)}
    driver.submit(query, ANSWER, inputs, at_s=at_s)


def finish(driver: VirtualDriver) -> None:
    assert all(reply.error is None for reply in driver.run().values())
    assert driver.system.is_idle()


@pytest.mark.parametrize("pause_s", [0.0, 10.0])
def test_equal_beginnings_go_to_one_instance(pause_s: float) -> None:
    """Four prompts, eight times each: all at once, when nothing is held yet, and one after the other."""
    driver, seen = simulated("longest_prefix", vocabulary=WITH_PREFIXES)
    for number in range(32):
        ask(driver, f"{number}", number % 4, number * pause_s)
    finish(driver)
    places = [{seen.instance(f"{number}") for number in range(rules, 32, 4)} for rules in range(4)]
    assert all(len(instances) == 1 for instances in places)
    if not pause_s:
        assert len(set.union(*places)) == 4, "each prompt has an instance of its own"


def test_late_binding_lets_prefixes_follow_free_slots() -> None:
    """The same load without the policy, for comparison."""
    driver, seen = simulated("least_loaded")
    for number in range(32):
        ask(driver, f"{number}", number % 4, 10.0 * number)
        ask(driver, f"{number} b", number % 4, 10.0 * number)
    finish(driver)
    assert len({seen.instance(f"{number}{b}") for number in range(0, 32, 4) for b in ("", " b")}) > 1


def test_requests_move_away_from_an_instance_that_drains() -> None:
    driver, seen = simulated("longest_prefix")
    for number in range(40):
        ask(driver, f"{number}", 0, 0.0)
    driver.drain("llm", 0, 0.1)
    finish(driver)
    moved = [admit for admit in seen.places.values() if admit.reason.startswith("moved from instance 0")]
    assert moved
    assert {admit.instance for admit in moved} <= {1, 2, 3}
    assert all({"start_s", "prefill_s", "move_s"} < set(admit.terms) for admit in moved)


def test_requests_move_away_from_an_instance_that_slows_down() -> None:
    """From 1 s on instance 0 takes ten times as long as its profile says."""
    shares = []
    for slow in ((), (Slowness("llm", 0, 1.0, 1e9, 10.0),)):
        driver, seen = simulated("longest_prefix", faults=FaultPlan(slow=slow))
        for number in range(160):
            ask(driver, f"{number}", number % 4, 0.05 * number)
        finish(driver)
        shares.append(sum(admit.instance == 0 for admit in seen.places.values()))
        if slow:
            assert any("moved from instance 0" in admit.reason for admit in seen.places.values())
    assert shares[1] < shares[0] / 2


# --- loads

LOADS = (0.5, 0.9, 1.1)
SEEDS = (0, 1)
NUM_QUERIES = 400
NUM_PREFIXES = 24


def run_load(placement: str, rate: float, seed: int, slow: Sequence[Slowness] = ()) -> tuple[float, float]:
    """Run Poisson arrivals of prompts whose beginnings are drawn by Zipf's law.

    Returns the mean latency and the end of the last answer, in seconds.
    """
    draw = random.Random(seed)
    driver, _ = simulated(placement, faults=FaultPlan(slow=tuple(slow)), check=False)
    weights = [1 / (rank + 1) for rank in range(NUM_PREFIXES)]
    arrivals: dict[str, float] = {}
    now_s = 0.0
    for number in range(NUM_QUERIES):
        now_s += draw.expovariate(rate)
        arrivals[f"q{number}"] = now_s
        ask(driver, f"q{number}", draw.choices(range(NUM_PREFIXES), weights)[0], now_s)
    finish(driver)
    ends_s = {action.query: at_s for at_s, action in driver.actions if isinstance(action, Reply)}
    return mean(ends_s[query] - arrivals[query] for query in arrivals), max(ends_s.values())


@cache
def capacity() -> float:
    """Requests a second that late binding serves when all come at once."""
    return NUM_QUERIES / run_load("late", 1e9, 0)[1]


@pytest.mark.long
@pytest.mark.parametrize("load", LOADS)
def test_binding_early_and_moving_is_not_worse(load: float) -> None:
    """Mean latencies of the same arrivals: better than late binding, and within 1 % of binding for good.

    With equal instances, few requests move. Moving pays where something goes wrong: see the next test.
    """
    early_s, late_s, final_s = (
        mean(run_load(placement, load * capacity(), seed)[0] for seed in SEEDS)
        for placement in ("longest_prefix", "late", "for_good")
    )
    print(f"load {load}: {early_s:.4f} s early, {late_s:.4f} s late, {final_s:.4f} s for good")
    assert early_s <= late_s
    assert early_s <= 1.01 * final_s


@pytest.mark.long
def test_moving_pays_where_an_instance_is_slow() -> None:
    """An instance takes ten times as long from 5 s on, at half load."""
    slow = [Slowness("llm", 0, 5.0, 1e9, 10.0)]
    early_s, final_s = (
        run_load(placement, 0.5 * capacity(), 0, slow)[0] for placement in ("longest_prefix", "for_good")
    )
    print(f"one slow instance: {early_s:.4f} s early, {final_s:.4f} s for good")
    assert early_s < 0.9 * final_s


# --- the runtime


def servers(num: int, make: Callable[[Log], Server] = Server) -> Deployment:
    """Servers that take a second for each word of the question, two requests at a time."""
    profile = Profile(per_unit_s=1.0, per_output_s=1.0)
    return deploy(
        "llm",
        make,
        Log(),
        contract="llm",
        runs_in="loop",
        instances=num,
        placement="longest_prefix",
        max_running=2,
        timeout_s=None,
        profile=profile,
    )


RULES = [" ".join(f"rule {number} of house {house}" for number in range(100)) for house in range(3)]


@in_virtual_time
async def test_equal_beginnings_go_to_one_server() -> None:
    """Keys are blocks of text here: nobody knows the tokenizer, and nothing is reported."""
    seen = Admitted()
    async with Runtime([servers(3)], vocabulary=WITH_PREFIXES, observers=[seen]) as runtime:
        for _ in range(3):
            await asyncio.gather(*(runtime.run(ANSWER, {"rules": rules, "q": "a b"}) for rules in RULES))
    places = [{seen.instance(f"q{1 + number}") for number in range(house, 9, 3)} for house in range(3)]
    assert all(len(instances) == 1 for instances in places)
    assert len(set.union(*places)) == 3


@in_virtual_time
async def test_requests_at_a_server_that_drains_move() -> None:
    seen = Admitted()
    async with Runtime([servers(2)], vocabulary=WITH_PREFIXES, observers=[seen]) as runtime:
        queries = [await runtime.submit(ANSWER, {"rules": RULES[0], "q": "a b c"}) for _ in range(8)]
        await asyncio.sleep(0.5)
        held = seen.instance("q1")
        runtime.drain_instance("llm", held)
        answers = await asyncio.gather(*queries)
    assert [dict(answer) for answer in answers] == [{"a": "A B C "}] * 8
    moved = [admit for admit in seen.places.values() if f"moved from instance {held}" in admit.reason]
    assert moved
    assert all(admit.instance != held for admit in moved)


@in_virtual_time
async def test_requests_at_a_server_that_hangs_move_to_an_idle_one() -> None:
    """A request hangs for ever at the server that holds the prefix."""
    seen = Admitted()
    async with Runtime(
        [servers(2).changed(max_running=1)], vocabulary=WITH_PREFIXES, observers=[seen]
    ) as runtime:
        hanging = await runtime.submit(ANSWER, {"rules": RULES[0], "q": "hang"})
        await asyncio.sleep(1)
        queries = [await runtime.submit(ANSWER, {"rules": RULES[0], "q": "a b"}) for _ in range(6)]
        answers = await asyncio.gather(*queries)
        hanging.cancel()
    assert [dict(answer) for answer in answers] == [{"a": "A B "}] * 6
    assert {seen.instance(f"q{number}") for number in range(2, 8)} == {1 - seen.instance("q1")}
    assert seen.num_moved() > 0
