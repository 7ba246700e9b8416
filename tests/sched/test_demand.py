"""What readers ask for reaches the requests that serve them, wherever they wait, and is taken back."""

from __future__ import annotations

import math

import pytest
from support.machines import CheckedSystem, batch_engine, batch_request, compiled, llm_engine

from stretto.model.errors import EngineUnavailable
from stretto.model.profile import Profile
from stretto.model.tasks import Criteria, Objective, QueryRecord, Started
from stretto.sched.actions import Admit, Reprioritise, StartBatch
from stretto.sched.engine_events import BatchDone, InstanceLost, LLMReport
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.messages import Close, Event, Extend, Open, Provide, Unwant, Wake, Want
from stretto.sched.orders import ORDERS
from stretto.sched.orders.order import Take
from stretto.sched.queries.demand import MOST_AT_ONCE, NOBODY, Demand
from stretto.sched.queries.request import QueueEntry, StepRequest
from stretto.sched.queries.session import SessionMachine

SECOND_EACH = {"e": Profile(base_s=1.0)}
STEP = compiled('graph s(%x: text)\n%y = call(%x) {result="text"} : text @e\nreturn %y', SECOND_EACH)
FORK = compiled(
    """
    graph fork(%x: text)
      %a = call(%x) {result="text"} : text @e
      %b = call(%a) {result="text"} : text @e
      %c = call(%a) {result="text"} : text @e
      return %b, %c
    """,
    SECOND_EACH,
)
SAY = compiled(
    """
    graph say(%x: text)
      %kv = prefill([%x]) : kv @llm
      %y = decode(%kv) {max_tokens=10} : text @llm
      return %y
    """
)


def asked(session: SessionMachine) -> dict[str, Demand]:
    """What is asked of each node, by name."""
    demands = session.graph.demands or {}
    return {node.name: demands[node.id] for node in session.graph.nodes.values() if node.id in demands}


# --- deduction


def test_the_strictest_criteria_of_all_readers_reach_what_their_variables_come_of() -> None:
    session = SessionMachine("q")
    session.extend(FORK, {})
    assert asked(session) == {}
    session.want("b", "throughput")
    assert asked(session) == {
        "a": Demand("throughput", path_s=2.0, job="b"),
        "b": Demand("throughput", path_s=1.0, job="b"),
    }
    session.want("c", "latency")
    assert {name: demand.criteria for name, demand in asked(session).items()} == {
        "a": "latency",
        "b": "throughput",
        "c": "latency",
    }
    session.unwant("c", "latency")
    assert {name: demand.criteria for name, demand in asked(session).items()} == {
        "a": "throughput",
        "b": "throughput",
    }


TWO_ANSWERS = compiled(
    """
    graph two(%x: text)
      %kv1 = prefill([%x]) : kv @llm
      %a = decode(%kv1) {max_tokens=10} : text @llm
      %kv2 = prefill([%a]) : kv @llm
      %b = decode(%kv2) {max_tokens=10} : text @llm
      %c = call(%b) {result="text"} : text @e
      return %c
    """,
    SECOND_EACH,
)


@pytest.mark.parametrize(
    ("criteria", "until_first", "of_the_answer"),
    [("first_token", "latency", "throughput"), ("time_per_token", "throughput", "latency")],
)
def test_a_reader_of_text_asks_one_thing_of_what_comes_before_it_and_another_of_its_answer(
    criteria: Criteria, until_first: Objective, of_the_answer: Objective
) -> None:
    session = SessionMachine("q")
    session.extend(TWO_ANSWERS, {})
    session.want("c", criteria)
    demands = asked(session)
    assert {demand.criteria for demand in demands.values()} == {until_first}
    assert {name: demand.preference for name, demand in demands.items()} == {
        "kv1": until_first,
        "a": until_first,
        "kv2": of_the_answer,
        "b": of_the_answer,
        "c": of_the_answer,
    }
    session.want("c", "latency")
    assert {demand.preference for demand in asked(session).values()} == {"latency"}
    session.unwant("c", "latency")
    assert asked(session) == demands


def test_deadlines_and_paths_go_back_through_several_graphs() -> None:
    session = SessionMachine("q")
    session.extend(STEP, {"x": "b", "y": "end"})
    session.want("end", deadline_s=10.0)
    session.want("c", deadline_s=5.0)
    session.extend(FORK, {})
    assert [(d.start_by_s, d.path_s) for d in asked(session).values()] == [
        (9.0, 1.0),  # the end
        (3.0, 3.0),  # a: two seconds before c is needed; three before the end
        (8.0, 2.0),
        (4.0, 1.0),
    ]
    session.unwant("c", deadline_s=5.0)
    assert {name: d.start_by_s for name, d in asked(session).items()} == {"a": 7.0, "b": 8.0, "y": 9.0}


def test_a_reader_leaves_with_what_that_reader_asked_and_nothing_else() -> None:
    session = SessionMachine("q", QueryRecord(criteria="latency"))
    session.extend(STEP, {})
    session.want("y")
    session.want("y", "throughput", 7.0)
    assert asked(session)["y"] == Demand("latency", 6.0, 1.0, job="y")
    session.unwant("y", "throughput")
    session.unwant("y", deadline_s=7.0)
    assert asked(session)["y"] == Demand("latency", 6.0, 1.0, job="y"), "nobody asked so"
    session.unwant("y")
    assert asked(session)["y"] == Demand("throughput", 6.0, 1.0, job="y")
    session.unwant("y", "throughput", 7.0)
    assert asked(session) == {}


def test_only_what_has_changed_is_passed_on() -> None:
    session = SessionMachine("q")
    session.extend(FORK, {})
    session.want("b", "latency")
    assert [(node.name, demand.criteria) for node, demand in session.want("c").demands] == [
        ("c", "throughput")
    ]
    session.provide("x", "x")
    assert session.want("x", "latency", 1.0).demands == [], "it is there"


def test_a_stricter_get_on_a_long_chain_takes_milliseconds() -> None:
    """Counted in nodes looked at, so that a slow machine passes."""
    session = SessionMachine("q")
    for number in range(2000):
        session.extend(STEP, {"x": str(number), "y": str(number + 1)})
    session.want("2000")
    seen = 0
    sources = session.graph.live.dependencies.sources

    def counting(node: object) -> object:
        nonlocal seen
        seen += 1
        return sources(node)  # type: ignore[arg-type]

    session.graph.live.dependencies.sources = counting  # type: ignore[method-assign, assignment]
    outcome = session.want("2000", "latency")
    num_changed = [len(outcome.demands)]
    while outcome.is_paused:
        outcome = session.go_on()
        num_changed.append(len(outcome.demands))
    assert sum(num_changed) == 2000
    assert max(num_changed) <= MOST_AT_ONCE, "others have a turn in between"
    assert seen <= 2 * 2000


# --- queues


def entry(
    request: StepRequest,
    criteria: Objective | None,
    arrival_s: float = 0.0,
    *,
    start_by_s: float = math.inf,
    path_s: float = 0.0,
) -> QueueEntry:
    made = QueueEntry(request, arrival_s=arrival_s)
    made.demand = made.sorted_as = Demand(criteria, start_by_s, path_s)
    return made


def served(queue: EngineQueue, now_s: float) -> list[str]:
    """Take everything, one item after the other."""
    steps = []
    while queue:
        chosen = queue.choose(0, lambda entry: 1, now_s)
        assert isinstance(chosen, Take)
        steps.append(chosen.entry.request.step)
        lo = queue.take(chosen.entry, 1)
        queue.started(chosen.entry, lo, lo + 1)
    return steps


@pytest.mark.parametrize("policy", ORDERS)
def test_classes_go_one_after_the_other_whatever_the_order(policy: str) -> None:
    engine = batch_engine(policy=policy, fill_timeout_s=0.0)
    queue = EngineQueue(engine.engine, engine.profile, ORDERS)
    for criteria in (None, "throughput", "latency"):
        for number in range(2):
            queue.add(entry(batch_request(f"{criteria}{number}", f"{criteria}", "x"), criteria))
    queue.choose(0, lambda _: 0, 0.0)  # puts them in order
    ranks = [queue.classes.rank(waiting)[0] for waiting in queue]
    assert ranks == sorted(ranks, reverse=True)
    assert served(queue, 0.0) == ["latency"] * 2 + ["throughput"] * 2 + ["None"] * 2


def test_what_has_waited_too_long_is_served_before_younger_requests_wanted_for_latency() -> None:
    engine = batch_engine(age_limit_s=10.0)
    queue = EngineQueue(engine.engine, engine.profile, ORDERS)
    queue.add(entry(batch_request("1", "old", "x"), "throughput", 0.0))
    queue.add(entry(batch_request("2", "older", "x"), "latency", -1.0))
    queue.add(entry(batch_request("3", "young", "x"), "latency", 5.0))
    queue.add(entry(batch_request("4", "not yet", "x"), "throughput", 5.0))
    assert served(queue, 11.0) == ["older", "old", "young", "not yet"]


def test_of_requests_alike_the_one_with_the_least_slack_goes_first() -> None:
    engine = batch_engine(policy="least_work", age_limit_s=10.0, profile=Profile(per_unit_s=0.1))
    queue = EngineQueue(engine.engine, engine.profile, ORDERS)
    queue.add(entry(batch_request("1", "no deadline", "x"), "latency"))
    queue.add(entry(batch_request("2", "far deadline", "x"), "latency", start_by_s=60.0))
    queue.add(entry(batch_request("3", "soon", "x"), "latency", start_by_s=5.0))
    queue.add(entry(batch_request("4", "at once", "x"), "latency", start_by_s=1.0))
    queue.add(entry(batch_request("5", "much work, soon", "x" * 30), "latency", start_by_s=5.0))
    queue.add(entry(batch_request("6", "long way", "x"), "latency", path_s=4.0))
    queue.add(entry(batch_request("6", "short way, soon", "x"), "latency", start_by_s=5.0))
    assert list(dict.fromkeys(served(queue, 0.0))) == [
        "at once",
        "soon",
        "short way, soon",
        "no deadline",
        "far deadline",
        "long way",
        "much work, soon",
    ]


def test_what_is_left_of_a_request_that_has_begun_moves_too() -> None:
    system = CheckedSystem([batch_engine(max_batch=1)])
    each = compiled(
        'graph m(%xs: list[text])\n%ys = call(text=each %xs) {result="text"} : list[text] @e\nreturn %ys'
    )
    events: list[Event] = [Open("s"), Extend("s", each), Provide("s", "xs", ["1", "2", "3"]), Want("s", "ys")]
    (start,) = [action for action in system.handle(events, 0.0) if isinstance(action, StartBatch)]
    latency = QueryRecord(criteria="latency")
    system.handle([Open("t", latency), Extend("t", STEP), Provide("t", "x", "t"), Want("t", "y")], 1.0)
    system.handle([Want("s", "ys", "latency")], 2.0)
    queries = []
    for result in (["1"], ["2"], ["3"]):
        actions = system.handle([BatchDone("e", 0, start.batch, [result])], 3.0)
        (start,) = [action for action in actions if isinstance(action, StartBatch)]
        queries.append(start.tasks[0].query)
    assert queries == ["s", "s", "t"], "by arrival, as all are wanted for latency"


# --- systems


def test_a_stricter_want_reprioritises_what_an_instance_has_not_started() -> None:
    system = CheckedSystem([llm_engine(max_batch=8192)])
    events: list[Event] = [
        Open("s"),
        Open("t"),
        *(Extend(query, SAY) for query in "st"),
        Want("s", "y"),
        Want("t", "y"),
    ]
    actions = system.handle([*events, *(Provide(query, "x", "hello") for query in "st")], 0.0)
    first, second = [action for action in actions if isinstance(action, Admit)]
    assert first.rank == second.rank
    assert second.task.objective == "throughput"
    (change,) = system.handle([Want("t", "y", "latency")], 1.0)
    assert isinstance(change, Reprioritise)
    assert change.task == second.task.id
    assert change.rank < first.rank
    assert system.handle([Want("t", "y", "latency")], 2.0) == []
    assert system.handle([Unwant("t", "y", "latency")], 3.0) == []
    (back,) = system.handle([Unwant("t", "y", "latency")], 3.0)
    assert back == Reprioritise("llm", 0, second.task.id, second.rank)
    system.handle([LLMReport("llm", 0, Started(second.task.id))], 4.0)
    assert system.handle([Want("t", "y", "latency")], 5.0) == [], "it runs"


def test_an_attempt_after_a_loss_is_made_for_what_is_asked_then() -> None:
    system = CheckedSystem([llm_engine(max_running=1)])
    events: list[Event] = [
        Open("s"),
        Extend("s", SAY),
        Provide("s", "x", "hello"),
        Want("s", "y", "throughput"),
    ]
    (admit,) = system.handle(events, 0.0)[1:]
    assert isinstance(admit, Admit)
    system.handle([LLMReport("llm", 0, Started(admit.task.id)), Want("s", "y", "latency")], 1.0)
    again = system.handle([InstanceLost("llm", 0, EngineUnavailable("gone"))], 2.0)
    (admit,) = [action for action in again if isinstance(action, Admit)]
    assert admit.task.objective == "latency"


def test_a_reader_whose_deadline_has_passed_asks_for_nothing_more() -> None:
    system = CheckedSystem([batch_engine()])
    events: list[Event] = [
        Open("s"),
        Extend("s", STEP),
        Want("s", "y", "latency", 5.0),
        Want("s", "y", "throughput", 9.0),
    ]
    system.handle([*events, Want("s", "y", "throughput", 9.0)], 0.0)
    assert system.alarms_s == [5.0]
    session = system.queries["s"]
    assert isinstance(session, SessionMachine)
    assert asked(session) == {"y": Demand("latency", 4.0, 1.0, job="y")}
    system.handle([Wake()], 5.0)
    assert asked(session) == {"y": Demand("throughput", 8.0, 1.0, job="y")}
    assert system.alarms_s == [9.0]
    system.handle([Unwant("s", "y", "latency", 5.0)], 6.0)
    system.handle([Wake()], 9.0)
    assert asked(session) == {}
    assert system.alarms_s == []
    system.handle([Close("s")], 10.0)


def test_what_a_one_shot_query_asks_holds_for_all_of_it() -> None:
    session = SessionMachine("q", QueryRecord(criteria="latency"))
    (work,) = session.submit(FORK, {"x": "x"}).work
    assert work.demand == Demand("latency", math.inf, 2.0)
    assert session.want("b").demands == []
    assert NOBODY.joined(work.demand) == work.demand
