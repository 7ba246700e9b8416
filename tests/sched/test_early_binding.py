"""Requests that are bound to an instance when they come: where they wait, and when they move."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count
from typing import Any

import pytest
from support.early_placement import SoonestStart, SoonestStartForGood
from support.machines import add_ready, llm_engine, llm_request, lost, serving

from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Bound, Choice, Dispatched, Ended, Joined, Left, Unbound
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.errors import EngineUnavailable
from stretto.model.profile import Profile
from stretto.model.tasks import Done, Started, Usage
from stretto.sched.actions import Admit, Reprioritise
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.orders import ORDERS
from stretto.sched.queries.demand import NOBODY, Demand

NO_USAGE = Usage()
PROFILE = Profile(per_unit_s=0.001, per_output_s=0.01)


class Machine:
    """A scheduler of one engine with a policy that binds early, checked after every call."""

    def __init__(self, placement: SoonestStart | None = None, **options: Any) -> None:
        settings = {"instances": 2, "max_running": 1, "max_batch": 10_000, "profile": PROFILE, **options}
        self.deployment = llm_engine(**settings)
        self.policy = SoonestStart() if placement is None else placement
        engine, profile = self.deployment.engine, self.deployment.profile
        self.scheduler = serving(LLMScheduler(engine, profile, self.policy, count(1)), self.deployment)
        self.admitted: dict[str, Admit] = {}

    def add(
        self, *steps: str, now_s: float = 0.0, tokens: int = 200, **changes: Any
    ) -> list[tuple[str, int]]:
        for step in steps:
            self.scheduler.add(llm_request(step, step, tokens, **changes), now_s)
        return self.schedule(now_s)

    def schedule(self, now_s: float = 0.0) -> list[tuple[str, int]]:
        """(step, instance) of what goes out now."""
        admits = [action for action in self.scheduler.schedule(now_s) if isinstance(action, Admit)]
        self.admitted |= {action.task.step: action for action in admits}
        self.scheduler.check_invariants()
        return [(action.task.step, action.instance) for action in admits]

    def end(self, step: str, now_s: float = 1.0, usage: Usage = NO_USAGE) -> list[tuple[str, int]]:
        admit = self.admitted[step]
        self.scheduler.report(admit.instance, Done(admit.task.id, "x", usage), now_s)
        return self.schedule(now_s)

    def num_waiting(self) -> list[int]:
        return [view.num_waiting for view in self.scheduler._loads.table]


def test_a_request_is_bound_to_a_full_instance_and_waits_there() -> None:
    machine = Machine()
    assert machine.add("a", "b") == [("a", 0), ("b", 1)]
    assert machine.add("c", "d", "e") == []
    assert machine.num_waiting() == [2, 1]
    assert not machine.scheduler.queue
    assert not machine.scheduler.is_idle()
    assert machine.scheduler.picture().num_waiting == 3
    assert sorted(machine.scheduler.queries()) == ["a", "b", "c", "d", "e"]
    assert machine.end("b") == [("d", 1)], "its own, though c came first"


def test_the_items_of_a_request_are_bound_one_by_one() -> None:
    machine = Machine()
    machine.add("a", num=6)
    assert machine.num_waiting() == [2, 2]


def test_events_tell_a_policy_all_that_happens_to_a_request() -> None:
    machine = Machine(instances=1)
    assert machine.policy.events == [Joined(0, "")]
    machine.policy.events.clear()
    machine.add("a", "b", "c")
    machine.end("a", usage=Usage(100, 40, 5))
    machine.scheduler.end_query("c")
    kinds = [type(event) for event in machine.policy.events]
    goes_out = [Unbound, Dispatched]
    assert kinds == [Bound, Bound, Bound, *goes_out, Ended, *goes_out, Unbound]
    ended = machine.policy.events[5]
    assert isinstance(ended, Ended)
    assert ended.held_tokens == 40
    assert ended.request is machine.policy.events[4].request  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["drained", "suspect", "lost"])
def test_what_waits_for_an_instance_that_does_not_serve_any_more_moves_at_once(how: str) -> None:
    machine = Machine(SoonestStartForGood(), max_attempts=9)
    machine.add("a", "b", "c", "d", "e", "f")
    assert machine.num_waiting() == [2, 2]
    scheduler = machine.scheduler
    match how:
        case "drained":
            scheduler.drain(0, "finish", 1.0)
        case "suspect":
            scheduler.suspected(0, "it refused", 1.0)
        case "lost":
            scheduler.lost(0, EngineUnavailable("gone"), 1.0)
    assert machine.schedule(1.0) == []
    left = 4 + (how == "lost")
    assert sum(machine.num_waiting()) == left
    assert machine.num_waiting()[-1] == left
    order = [machine.end("b", 2.0), machine.end("c", 3.0) if "c" in machine.admitted else []]
    assert all(place == 1 for admitted in order for _, place in admitted)


def test_requests_wait_in_the_queue_of_the_engine_while_nobody_serves() -> None:
    machine = Machine(instances=1)
    machine.add("a", "b")
    machine.scheduler.suspected(0, "it refused", 1.0)
    assert machine.schedule(1.0) == [], "a runs there"
    assert [entry.request.step for entry in machine.scheduler.queue] == ["b"]
    assert machine.end("a") == [("b", 0)]
    assert machine.add("c", now_s=2.0) == [], "one request at a time"
    assert len(machine.scheduler.queue) == 1
    machine.scheduler.ready(0, 20.0)
    assert machine.schedule(20.0) == []
    assert machine.num_waiting() == [1]


def test_an_idle_instance_takes_what_waits_elsewhere() -> None:
    machine = Machine(instances=1)
    machine.add("a", "b", "c", "d")
    add_ready(machine.scheduler, machine.deployment.replicas[0], 1.0)
    assert machine.schedule(1.0) == [("b", 1)]
    assert machine.admitted["b"].reason == "moved from instance 0; starts first"
    assert machine.admitted["b"].terms == {"start_s": 0.0, "move_s": 0.0}


def test_a_request_does_not_move_for_less_than_the_margin() -> None:
    machine = Machine(SoonestStart(margin_s=100.0), instances=1)
    machine.add("a", "b", "c", "d")
    add_ready(machine.scheduler, machine.deployment.replicas[0], 1.0)
    assert machine.schedule(1.0) == []
    machine.scheduler.drain(0, "finish", 2.0)
    assert machine.schedule(2.0) == [("b", 1)], "the margin is for instances that serve"


def test_what_is_bound_for_good_is_not_asked_about() -> None:
    machine = Machine(SoonestStartForGood(), instances=1)
    machine.add("a", "b", "c", "d")
    add_ready(machine.scheduler, machine.deployment.replicas[0], 1.0)
    assert machine.schedule(1.0) == []
    assert machine.policy.num_asked == 0


def test_the_queue_of_an_instance_that_slows_down_is_asked_about() -> None:
    """Instance 0 takes twice as long as predicted: 2.4 s. Both have a queue of their own all the time."""
    machine = Machine(max_running=2)
    machine.add(*(f"q{number}" for number in range(16)))
    assert machine.num_waiting() == [6, 6]
    slow, fast = ([step for step, a in machine.admitted.items() if a.instance == i] for i in range(2))
    for step in fast:
        machine.end(step, now_s=1.2, usage=Usage(100, 0, 100))
    assert machine.num_waiting() == [6, 4]
    assert machine.policy.num_asked == 0
    machine.end(slow[0], now_s=2.4, usage=Usage(100, 0, 100))
    num_slow, num_fast = machine.num_waiting()
    assert num_slow < 5
    assert num_fast > 4


@pytest.mark.parametrize(("seconds", "is_slow"), [(1.2, False), (6.0, True)])
def test_prefills_that_came_later_do_not_make_an_instance_slow(seconds: float, is_slow: bool) -> None:
    """The first answer takes 0.2 s for its prefill, 0.8 s for those of four requests sent after it, and 0.2 s
    for its tokens.
    """
    machine = Machine(instances=1, max_running=5)
    machine.add("first", "b", "c", "d", "e")
    machine.end("first", now_s=seconds, usage=Usage(200, 0, 20))
    (view,) = machine.scheduler._loads.table
    assert (view.slowness > 1.0) == is_slow


def test_an_instance_with_one_long_answer_is_not_slow() -> None:
    """Lengths of answers have long tails: the others that run there end in time."""
    machine = Machine(max_running=2)
    machine.add(*(f"q{number}" for number in range(16)))
    of_0 = [step for step, admit in machine.admitted.items() if admit.instance == 0]
    ending = of_0[1]
    for round_number in range(1, 5):
        admitted = machine.end(ending, now_s=1.2 * round_number, usage=Usage(100, 0, 100))
        ending = next(step for step, instance in admitted if instance == 0)
        view = machine.scheduler._loads.table.get(0)
        assert view is not None
        assert view.slowness == 1.0


def test_an_instance_that_hangs_is_noticed_without_any_event() -> None:
    machine = Machine(max_running=1)
    machine.add(*(f"q{number}" for number in range(6)))
    (hanging,) = [step for step, admit in machine.admitted.items() if admit.instance == 0]
    assert machine.num_waiting() == [2, 2]
    now_s, num_left = 0.0, 4
    while num_left:
        assert machine.scheduler.not_before_s is not None
        assert machine.scheduler.not_before_s > now_s or not now_s
        now_s = max(now_s, machine.scheduler.not_before_s)
        machine.schedule(now_s)
        running = {step for step, admit in machine.admitted.items() if admit.instance == 1}
        for step in sorted(running):
            if machine.admitted[step].task.id in machine.scheduler._loads.of(1):
                machine.end(step, now_s, Usage(100, 0, 100))
        num_left = sum(machine.num_waiting())
        now_s += 0.6
        assert now_s < 20.0
    assert machine.admitted[hanging].task.id in machine.scheduler._loads.of(0)


def test_no_event_asks_about_more_than_32_requests() -> None:
    machine = Machine(SoonestStart(margin_s=1e6), instances=6)
    machine.add(*(f"q{number}" for number in range(600)))
    add_ready(machine.scheduler, machine.deployment.replicas[0], 1.0)
    machine.schedule(1.0)
    assert machine.policy.num_asked == 32


def test_a_request_larger_than_an_instance_goes_to_one_that_holds_it() -> None:
    small = llm_engine(max_batch=None, kv_tokens=100, profile=PROFILE).replicas[0]
    large = llm_engine(max_batch=None, kv_tokens=500, profile=PROFILE).replicas[0]
    machine = Machine(instances=1, max_batch=None, kv_tokens=100)
    add_ready(machine.scheduler, small, 0.0)
    add_ready(machine.scheduler, large, 0.0)
    assert machine.add("a", "b", tokens=300) == [("a", 2)]
    assert machine.num_waiting() == [0, 0, 1]
    assert machine.add("small", tokens=50) == [("small", 0)]


def test_a_withdrawn_or_unwanted_request_is_found_where_it_is_bound() -> None:
    machine = Machine(instances=1)
    machine.add("a", "b", "c")
    machine.scheduler.ask("b", {1: NOBODY})
    assert machine.scheduler.withdraw("c", 1, 0.0) == []
    machine.scheduler.check_invariants()
    assert machine.num_waiting() == [1]
    machine.add("d")
    assert machine.end("a") == [("d", 0)], "nobody waits for b"
    assert machine.end("d") == [("b", 0)]


def test_what_a_request_held_up_goes_out_when_that_is_withdrawn() -> None:
    machine = Machine(instances=1, max_running=2, max_batch=1000, policy="throughput", fill_timeout_s=0.0)
    assert machine.add("a") == [("a", 0)]
    assert machine.add("large", tokens=900) == []
    assert machine.add("small") == [], "it comes after the large one, in this order"
    machine.scheduler.withdraw("large", 1, 1.0)
    assert machine.schedule(1.0) == [("small", 0)]


class Stubborn(SoonestStart):
    """Places all requests at instance 7."""

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        return Choice(7)


def test_an_instance_that_was_not_offered_is_a_bug_of_the_policy() -> None:
    machine = Machine(Stubborn())
    with pytest.raises(ValueError, match="the placement policy names instance 7, which it was not offered"):
        machine.add("a")
    queries, _ = machine.scheduler.recover()
    assert queries == ["a"]
    clock = machine.scheduler.account.ageing
    before = clock.add(0.0)
    clock.remove(0.0)
    clock.advance(200.0)
    assert clock.add(200.0) - before == pytest.approx(200 / 20), "nothing waits any more"


def test_ranks_of_what_was_handed_over_are_those_of_its_own_queue() -> None:
    machine = Machine(max_running=4, instances=1)
    machine.add("a", tokens=4000)
    machine.scheduler.add(llm_request("a", "more", 8000, num=3), 0.1)
    actions = machine.scheduler.schedule(0.1)
    assert [a.task for a in actions if isinstance(a, Reprioritise)] == [1]
    machine.scheduler.report(0, Started(1), 0.2)
    machine.scheduler.check_invariants()


@pytest.mark.parametrize("policy", sorted(ORDERS))
def test_random_events_lose_no_request(policy: str) -> None:
    """Instances come, drain, are suspected and die; every request is answered, failed or dropped, once."""
    for seed in range(6):
        draw = random.Random(seed)
        machine = Machine(
            SoonestStart(draw.choice((0.0, 0.2))),
            instances=3,
            max_running=draw.randint(1, 3),
            max_attempts=99,
            policy=policy,
            no_replica_s=1e9,
        )
        scheduler, now_s = machine.scheduler, 0.0
        todo, ended = set[str](), Counter[str]()
        for number in range(150):
            now_s += draw.random()
            live = scheduler.instances.fleet.live
            match draw.choice(("add", "add", "add", "end", "end", "end", "drop", "want", "fleet")):
                case "add":
                    todo.add(f"q{number}")
                    scheduler.add(llm_request(f"q{number}", f"q{number}", 200, num=1), now_s)
                case "end":
                    end_one(scheduler, draw, ended, now_s)
                case "drop" if todo:
                    dropped = draw.choice(sorted(todo))
                    scheduler.end_query(dropped)
                    todo.discard(dropped)
                case "want" if todo:
                    scheduler.ask(draw.choice(sorted(todo)), {1: draw.choice((NOBODY, Demand("latency")))})
                case "fleet" if len(live) > 1:
                    change_fleet(machine, draw, now_s)
            machine.schedule(now_s)
        for _ in range(1000):
            if scheduler.is_idle():
                break
            now_s += 20.0
            if not scheduler.instances.fleet.serving:
                add_ready(scheduler, machine.deployment.replicas[0], now_s)
            machine.schedule(now_s)
            end_one(scheduler, draw, ended, now_s)
            machine.schedule(now_s)
        assert scheduler.is_idle(), f"seed {seed}"
        assert all(ended[query] == 1 for query in todo), f"seed {seed}"
        check_events(machine.policy)


def end_one(scheduler: LLMScheduler, draw: random.Random, ended: Counter[str], now_s: float) -> None:
    """Let something that runs end, if anything does."""
    fleet = scheduler.instances.fleet
    running = [one for instance in fleet.live for one in scheduler._loads.of(instance).values()]
    if running:
        one = draw.choice(running)
        ended.update(report.query for report in scheduler.report(one.instance, Done(one.task, "x"), now_s))


def change_fleet(machine: Machine, draw: random.Random, now_s: float) -> None:
    scheduler, fleet = machine.scheduler, machine.scheduler.instances.fleet
    serving = list(fleet.serving)
    match draw.choice(("join", "drain", "suspect", "back", "lost")):
        case "join":
            add_ready(scheduler, machine.deployment.replicas[0], now_s)
        case "drain" if len(serving) > 1:
            scheduler.drain(draw.choice(serving), "finish", now_s)
        case "suspect" if serving:
            scheduler.suspected(draw.choice(serving), "it refused", now_s)
        case "back" if fleet.suspects:
            scheduler.ready(draw.choice(list(fleet.suspects)), now_s)
        case "lost" if serving:
            lost(scheduler, draw.choice(serving), EngineUnavailable("gone"), now_s)


def check_events(policy: SoonestStart) -> None:
    """Every `Bound` is followed by `Unbound`, and every `Dispatched` by `Ended`."""
    num = Counter(type(event) for event in policy.events)
    assert num[Dispatched] == num[Ended]
    waiting = Counter[int]()
    joined = Counter[int]()
    for event in policy.events:
        match event:
            case Joined(instance):
                joined[instance] += 1
            case Left(instance):
                assert waiting[instance] == 0
                joined[instance] -= 1
            case Bound(instance):
                assert joined[instance] == 1
                waiting[instance] += 1
            case Unbound(instance):
                waiting[instance] -= 1
    assert not any(waiting.values())
