"""The order that serves programs: whose turn it is, by what was learned, deadlines and tenants."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import pytest
from support.machines import batch_engine, batch_request, llm_engine, llm_request

from stretto.model.errors import ConfigError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, QueryRecord, Usage
from stretto.sched.engines.queue import EngineQueue, heads
from stretto.sched.orders import ORDERS
from stretto.sched.orders.order import OrderConfig, Take
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.orders.programs_first import ProgramsFirst
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry, StepRequest
from stretto.sched.system import System


class Line:
    """A queue with its account, which is asked for one item after the other."""

    def __init__(self, **weights: float) -> None:
        self.account = ProgramAccount(0.001, 0.01, weights)
        config = OrderConfig(unit_s=0.001, output_s=0.01, account=self.account)
        self.order = ProgramsFirst(config)
        self.num = 0

    def add(self, request: StepRequest, now_s: float = 0.0) -> QueueEntry:
        entry = QueueEntry(request, now_s, request.decode.max_tokens if request.decode else 0)
        self.num += 1
        entry.number = self.num
        entry.fresh = self.account.arrived(request, entry.num_output, now_s)
        self.order.add(entry)
        return entry

    def take(self, now_s: float = 0.0, fits: int = 1) -> QueueEntry | None:
        chosen = self.order.take(0, lambda entry: fits, now_s)
        if not isinstance(chosen, Take):
            return None
        entry, lo = chosen.entry, chosen.entry.lo
        self.order.taken(entry, 1)
        self.account.sent(entry.request, now_s)
        self.order.started(entry, lo, lo + 1)
        return entry

    def takes(self, now_s: float = 0.0) -> str:
        entry = self.take(now_s)
        assert entry is not None
        return entry.request.step

    def run(self, request: StepRequest, at_s: float, num_output: int) -> None:
        """Let a request run alone."""
        self.add(request, at_s)
        assert self.take(at_s) is not None
        self.account.ended(request, at_s + 1.0, 1, 0.01 * num_output)


def call(program: str, step: str, tokens: int = 100, **changes: Any) -> StepRequest:
    """A call of an LLM of 10 tokens in and `tokens` out, of a program of one query."""
    record = QueryRecord(arrival_s=0.0, **{"kind": step, **changes})
    return llm_request(program, step, tokens + 10, decode=Decode(tokens), record=record)


def turn(agent: str, number: int, tokens: int = 10) -> StepRequest:
    record = QueryRecord(arrival_s=0.0, program=agent, kind="agent")
    return llm_request(f"{agent}/{number}", "turn", tokens + 10, decode=Decode(tokens), record=record)


def test_an_agent_that_was_in_its_tools_overtakes_nobody() -> None:
    """A query that began long ago is credited nothing for the time in which nothing of it waited here."""
    line = Line()
    line.add(call("young", "young"), 100.0)
    old = QueryRecord(arrival_s=0.0, kind="agent")
    line.add(llm_request("agent", "agent", 120, decode=Decode(110), record=old), 100.0)
    assert line.takes(100.0) == "young"


def test_what_a_kind_asks_for_later_counts() -> None:
    """A call of an agent is short, but more of them come; a chat is one call."""
    line = Line()
    for number in range(8):
        for step in range(6):
            line.run(turn(f"agent {number}", step), number + step / 10, 30)
            line.account.query_ended(f"agent {number}/{step}")
        line.account.program_ended(f"agent {number}")
        line.run(call(f"chat {number}", "chat", 50), number + 0.9, 50)
        line.account.query_ended(f"chat {number}")
    line.add(turn("new agent", 0), 50.0)
    line.add(call("new chat", "chat", 50), 50.0)
    assert line.takes(50.0) == "chat"


def test_turns_of_one_program_are_one_in_the_order() -> None:
    """Least attained service goes first where nothing is learned, and all queries of a program count."""
    line = Line()
    for step in range(5):
        line.run(turn("busy", step), step / 10, 30)
    line.add(turn("busy", 5), 2.0)
    line.add(turn("fresh", 0, 20), 2.0)
    first = line.take(2.0)
    assert first is not None
    assert first.query == "fresh/0"


def test_two_that_are_alike_go_by_their_wait() -> None:
    line = Line()
    line.add(call("second", "second"), 5.0)
    line.add(call("first", "first"), 4.0)
    assert line.takes(6.0) == "first"


def test_the_least_slack_goes_first_of_what_can_still_be_kept() -> None:
    line = Line()
    line.add(call("loose", "loose", 100, deadline_s=60.0), 0.0)
    line.add(call("tight", "tight", 200, deadline_s=10.0), 0.0)
    line.add(call("tighter", "tighter", 300, deadline_s=9.5), 0.0)
    line.add(call("missed", "missed", 50, deadline_s=8.0), 0.0)
    assert line.takes(9.0) == "tighter"
    assert [line.takes(9.0) for _ in range(3)] == ["missed", "tight", "loose"], "urgent work has a share only"


def test_a_near_deadline_takes_a_place_and_a_missed_one_does_not() -> None:
    line = Line()
    for number in range(6):
        line.add(call(f"short {number}", "short", 10), 0.0)
    line.add(call("tight", "tight", 200, deadline_s=10.0), 0.0)
    line.add(call("missed", "missed", 150, deadline_s=3.0), 0.0)
    assert line.takes(5.0) == "short", "the deadline is not near yet, or gone"
    assert line.takes(9.0) == "tight"
    assert line.takes(9.0) == "short"


@pytest.mark.parametrize("num_returns", [1, 2, 5])
def test_an_entry_that_comes_back_is_urgent_once(num_returns: int) -> None:
    """Its instance went before its deadline was near. It is offered only while it waits."""
    line = Line()
    tight = line.add(call("tight", "tight", 1, deadline_s=10.0))
    for number in range(4):
        line.add(call(f"short {number}", "short", 500))
    for _ in range(num_returns):
        assert line.take(0.0) is tight
        tight.lo = tight.request.lo
        line.order.add(tight)

    def fits(entry: QueueEntry) -> int:
        assert entry.lo < entry.hi, "it waits"
        return 1

    taken = []
    while (chosen := line.order.take(0, fits, 9.0)) is not None:
        assert isinstance(chosen, Take)
        taken.append(chosen.entry.request.step)
        line.order.taken(chosen.entry, 1)
        line.order.started(chosen.entry, 0, 1)
    assert sorted(taken) == ["short"] * 4 + ["tight"]


def test_a_deadline_of_a_program_reaches_each_of_its_steps() -> None:
    """What programs took from such a step to their end is learned, and kept free before the deadline."""
    line = Line()
    for number in range(8):
        first, second = call(f"{number}", "first", kind="app"), call(f"{number}", "second", kind="app")
        object.__setattr__(second.node, "id", 99)
        line.add(first, 10.0 * number)
        line.take(10.0 * number)
        line.account.ended(first, 10.0 * number + 2)
        line.add(second, 10.0 * number + 2)
        line.take(10.0 * number + 2)
        line.account.ended(second, 10.0 * number + 5)
        line.account.query_ended(f"{number}")
    with_deadline = call("new", "first", kind="app", deadline_s=110.0)
    assert line.account.start_by_s(with_deadline) == pytest.approx(105.0)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_burst_delays_its_own_tenant(weight: float) -> None:
    """Beyond the lead, tenants with work waiting get service in proportion to their weights."""
    line = Line(**{"steady": weight})
    for number in range(200):
        line.add(call(f"burst {number}", "burst", 50, tenant="bursting"), 0.0)
        line.add(call(f"steady {number}", "steady", 100, tenant="steady"), 0.0)
    went = [line.takes() for _ in range(150)]
    assert set(went[:8]) == {"burst"}, "the shortest programs go first while nobody is far ahead"
    served_s = {
        step: sum(0.01 * (50 if step == "burst" else 100) for one in went if one == step) for step in went
    }
    assert served_s["steady"] == pytest.approx(weight * (served_s["burst"] - 4.0), rel=0.1, abs=2.0)


def test_shares_are_work_conserving_and_idle_time_gives_no_credit() -> None:
    line = Line()
    for number in range(100):
        line.add(call(f"one {number}", "one", 100, tenant="one"), 0.0)
    assert [line.takes() for _ in range(60)] == ["one"] * 60
    for number in range(60):
        line.add(call(f"late {number}", "late", 200, tenant="late"), 1.0)
    went = [line.takes(1.0) for _ in range(20)]
    assert went.count("one") >= 5, "the tenant that comes late begins where the other one is"


@pytest.mark.parametrize(("num_modest", "least"), [(9, 0.45), (6, 0.31)])
def test_a_tenant_of_few_clients_gets_its_share_though_all_of_them_are_served_at_times(
    num_modest: int, least: float
) -> None:
    """16 places, each for a second. Six clients can fill 0.375 of them at most, nine could more than half."""
    line, rng, num_ended = Line(), random.Random(num_modest), {"greedy": 0, "modest": 0}
    running: list[tuple[float, int, QueueEntry]] = []
    num_waiting = 0

    def ask(tenant: str, now_s: float) -> None:
        nonlocal num_waiting
        line.add(call(f"{tenant} {line.num}", tenant, 1, tenant=tenant), now_s)
        num_waiting += 1

    def fill(now_s: float) -> None:
        nonlocal num_waiting
        while len(running) < 16 and num_waiting:
            entry = line.take(now_s)
            assert entry is not None
            num_waiting -= 1
            heappush(running, (now_s + rng.uniform(0.8, 1.2), entry.number, entry))

    for tenant in ["greedy"] * 60 + ["modest"] * num_modest:
        ask(tenant, 0.0)
    fill(0.0)
    for _ in range(2400):
        now_s, _, entry = heappop(running)
        line.account.ended(entry.request, now_s)
        line.account.query_ended(entry.request.query)
        fill(now_s)  # before its client, who has the answer a moment later, asks again
        ask(entry.request.record.tenant, now_s)
        num_ended[entry.request.record.tenant] += now_s > 75.0  # then the lead is used up
        fill(now_s)
    line.account.check_invariants()
    assert num_ended["modest"] >= least * sum(num_ended.values())


def test_each_tenant_has_its_own_oldest() -> None:
    line = Line()
    line.add(call("old", "old", 300, tenant="a"), 0.0)
    for number in range(30):
        line.add(call(f"a {number}", "a", 10, tenant="a"), 20.0)
        line.add(call(f"b {number}", "b", 20, tenant="b"), 20.0)
    assert "old" in [line.takes(20.0) for _ in range(40)]


def test_a_queue_with_tenants_serves_all_whatever_happens() -> None:
    draw = random.Random(3)
    line, waiting = Line(b=2.0), set[QueueEntry]()
    for number in range(1000):
        now_s, act = number / 10, draw.random()
        if act < 0.5:
            tenant, deadline = draw.choice("abc"), draw.choice((None, now_s + draw.uniform(0, 20)))
            request = call(
                f"q{number}", draw.choice("xyz"), draw.randint(1, 50), tenant=tenant, deadline_s=deadline
            )
            waiting.add(line.add(request, now_s))
        elif act < 0.9:
            entry = line.take(now_s)
            assert (entry is None) == (not waiting)
            if entry is not None:
                waiting.remove(entry)
        elif waiting:
            entry = draw.choice(sorted(waiting, key=lambda one: one.number))
            waiting.remove(entry)
            line.order.remove(entry)
        line.account.check_invariants()
        line.order.check_invariants()
    while waiting:
        entry = line.take(300.0)
        assert entry is not None
        waiting.remove(entry)
    assert line.take(300.0) is None


def test_no_more_than_32_are_asked_about_over_all_tenants() -> None:
    line = Line()
    for number in range(200):
        line.add(call(f"{number}", "x", 10, tenant=f"tenant {number % 9}"), 0.0)
    asked: list[QueueEntry] = []

    def refuse(entry: QueueEntry) -> int:
        asked.append(entry)
        return 0

    assert line.order.take(0, refuse, 1.0) is None
    assert 1 <= len(asked) <= 32


# --- offline work, in the queue of an engine


def queue_of(requests: Iterable[tuple[StepRequest, float]]) -> EngineQueue:
    engine = llm_engine(profile=Profile(per_unit_s=0.001, per_output_s=0.16))
    queue = EngineQueue(engine.engine, engine.profile, ORDERS)
    for request, at_s in requests:
        queue.add(QueueEntry(request, at_s, request.decode.max_tokens if request.decode else 0))
    return queue


def next_of(queue: EngineQueue, now_s: float) -> str:
    chosen = queue.choose(0, lambda entry: 1, now_s)
    assert isinstance(chosen, Take)
    queue.take(chosen.entry, 1)
    return chosen.entry.request.step


def test_each_head_of_a_queue_is_named_once_though_a_deadline_is_near() -> None:
    queue = queue_of([(call("tight", "tight", 10, deadline_s=10.0), 0.0), (call("x", "other", 20), 0.0)])
    assert [entry.request.step for entry in heads(queue, 8, 9.0)] == ["tight", "other"]


def offline(name: str, deadline_s: float) -> StepRequest:
    record = QueryRecord(criteria="offline", deadline_s=deadline_s, arrival_s=0.0)
    return llm_request(name, name, 110, decode=Decode(100), record=record, demand=Demand("offline"))


def test_offline_work_is_raised_before_its_window_would_be_missed() -> None:
    """Two requests of a second each wait. With twice that time left, the more urgent one goes like others."""
    waiting = [(offline("later", 200.0), 0.0), (offline("soon", 100.0), 0.0)]
    online = [(llm_request(f"{n}", "online", 500, decode=Decode(256)), 50.0) for n in range(9)]
    queue = queue_of([*waiting, *online])
    assert next_of(queue, 50.0) == "online"
    assert next_of(queue, 95.0) == "online", "time enough for both"
    assert next_of(queue, 97.0) == "soon"
    assert next_of(queue, 97.0) == "online", "the other has time"
    assert next_of(queue, 199.0) == "later"
    assert [next_of(queue, 199.0) for _ in range(6)] == ["online"] * 6
    assert not len(queue)


def test_offline_work_without_a_window_takes_what_is_left() -> None:
    batch = batch_request("b", "batch", "x", demand=Demand("offline"))
    queue = queue_of([(batch, 0.0), (llm_request("1", "online", 20), 500.0)])
    assert [next_of(queue, 1000.0) for _ in range(2)] == ["online", "batch"]


def test_what_is_wanted_for_latency_keeps_most_places_when_other_work_is_aged() -> None:
    """It used to lose all of them, as soon as one request for throughput had waited for ten seconds."""
    batch = [(llm_request(f"b{n}", "throughput", 20, demand=Demand("throughput")), 0.0) for n in range(9)]
    chats = [(llm_request(f"c{n}", "latency", 20, demand=Demand("latency")), 50.0) for n in range(30)]
    queue = queue_of([*batch, *chats])
    went = [next_of(queue, 60.0) for _ in range(17)]
    assert went == ["throughput", *["latency"] * 7, "throughput", *["latency"] * 7, "throughput"]


def test_weights_of_tenants_reach_all_engines_and_are_checked() -> None:
    profile = Profile(per_unit_s=0.5)
    engines = [llm_engine(profile=profile), batch_engine(profile=profile)]
    for scheduler in System(engines, tenant_weights={"paying": 3.0}).schedulers.values():
        for tenant in ("paying", "other"):
            request = batch_request(tenant, "e", "xyz", record=QueryRecord(tenant, arrival_s=0.0))
            scheduler.account.arrived(request, 0, 0.0)
            scheduler.account.sent(request, 0.0, 3)
        assert scheduler.account.tenants.served_s("other") == pytest.approx(1.5)
        assert scheduler.account.tenants.served_s("paying") == pytest.approx(0.5)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="the weight of tenant 'x' is"):
            System([llm_engine()], tenant_weights={"x": wrong})


@pytest.fixture
def half_cached() -> Line:
    """A queue that has learned that half of each chat's prompt of 100 tokens is cached."""
    line = Line()
    for number in range(8):
        request = call(f"{number}", "chat", 10, kind="chat")
        request = replace(request, units=(100,))
        line.add(request, float(number))
        assert line.take(float(number)) is not None
        line.account.answered(request, Usage(100, 50, 10), 10, number + 0.5)
        line.account.query_ended(request.query)
    return line


def chats(line: Line, held: Mapping[str, int | None], *, are_alone: bool = False) -> None:
    """Let chats arrive of whose prompts caches hold so many tokens, by default while an agent runs."""
    if not are_alone:
        line.add(turn("agent", 0), 9.0)
        assert line.takes(9.0) == "turn"
    line.account.num_held = lambda request: held[request.query]
    for name in held:
        line.add(replace(call(name, "chat", 10, kind="chat"), units=(100,)), 10.0)


def test_of_chats_that_are_alike_one_that_is_held_goes_before_one_that_was_lost(half_cached: Line) -> None:
    held = {"lost": 0, "kept": 90, "usual": 50}
    chats(half_cached, held)
    taken = [half_cached.take(11.0) for _ in held]
    assert [entry.query for entry in taken if entry is not None] == ["kept", "usual", "lost"]
    half_cached.account.check_invariants()


def test_among_chats_alone_one_that_was_lost_does_not_wait_for_all_others(half_cached: Line) -> None:
    chats(half_cached, {"lost": 0, "kept": 90}, are_alone=True)
    taken = half_cached.take(11.0)
    assert taken is not None
    assert taken.query == "lost"


def test_what_is_lost_while_it_waits_goes_by_its_new_price(half_cached: Line) -> None:
    held: dict[str, int | None] = {"first": 90, "second": 50}
    chats(half_cached, held)
    chosen = half_cached.order.take(0, lambda entry: 1, 11.0)
    assert isinstance(chosen, Take)
    assert chosen.entry.query == "first"
    held["first"] = 0
    taken = half_cached.take(11.0)
    assert taken is not None
    assert taken.query == "second"
    held["first"] = None  # nothing is known any more
    assert half_cached.take(11.0) is chosen.entry
    half_cached.account.check_invariants()
