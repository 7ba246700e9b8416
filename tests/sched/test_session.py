"""Sessions by hand: what is wanted goes first, what is dropped goes, and values live as long as needed."""

from __future__ import annotations

import pytest
from support.machines import CheckedSystem, batch_engine, compiled

from stretto.core import ABSENT, Failure
from stretto.errors import DeadlineExceeded, EngineFailure, InternalError, QueryCancelled, UserError
from stretto.messages import (
    BatchDone,
    Close,
    Drop,
    Extend,
    Open,
    Provide,
    Reply,
    Settled,
    StartBatch,
    Submit,
    Unwant,
    Wake,
    Want,
)
from stretto.sched.demand import NOBODY, Demand
from stretto.sched.session import Session
from stretto.tasks import QueryRecord

EMBED = compiled("graph g(%x: text)\n%v = embed(%x) : vector @e\nreturn %v")
CHAIN = compiled(
    """
    graph chain(%x: text)
      %a = call(%x) {result="text"} : text @e
      %b = call(%a) {result="text"} : text @e
      %c = call(%b) {result="text"} : text @e
      return %c
    """
)


def failure(message: str) -> Failure:
    return Failure(EngineFailure(message, step="somewhere"))


def test_a_variable_settles_once() -> None:
    session = Session("q")
    assert session.provide("x", 1).settled == [("x", 1)]
    assert session.provide("x", 2).settled == []
    (work,) = session.extend(EMBED, {}).work
    assert work.inputs == {"texts": 1}
    assert session.provide("v", 3).settled == [], "it comes of a graph"
    assert session.complete(work.node.id, 0, [(7,)]).settled == [("v", (7,))]
    assert session.complete(work.node.id, 0, [(8,)]).settled == []


def test_values_inside_a_graph_are_freed_after_their_last_reader() -> None:
    session = Session("q")
    session.extend(CHAIN, {})
    outcome = session.provide("x", "x")
    for result in ("a", "b", "c"):
        (work,) = outcome.work
        outcome = session.complete(work.node.id, 0, [result])
        session.check_invariants()
    assert outcome.settled == [("c", "c")]
    assert not session.graph.nodes
    assert len(session.graph.values) == 2, "x and c, the session's"
    session.drop("x")
    session.drop("c")
    assert len(session.graph.values) == 0


def test_what_is_wanted_is_told_from_what_is_not_whenever_that_changes() -> None:
    session = Session("q", QueryRecord(tenant="acme"))
    session.provide("x", "x")
    (work,) = session.extend(EMBED, {}).work
    assert work.demand == NOBODY
    assert work.record.tenant == "acme"
    wanted = Demand("throughput")
    assert session.want("v").demands == [(work.node, wanted)]
    assert session.want("v").demands == [], "a second one"
    assert session.unwant("v").demands == []
    assert session.unwant("v").demands == [(work.node, NOBODY)]
    assert session.unwant("v").demands == []
    session.want("later")
    (work,) = session.extend(EMBED, {"v": "later"}).work
    assert work.demand == wanted, "it was wanted before it was known what it comes of"


def test_unwanted_work_waits_for_wanted_work_at_an_engine() -> None:
    system = CheckedSystem([batch_engine(max_batch=1)])
    busy, *_ = system.handle([Open("s"), Provide("s", "x", "x"), Extend("s", EMBED)], 0.0)[1:]
    assert isinstance(busy, StartBatch)
    system.handle([Extend("s", EMBED, {"v": "later"}), Extend("s", EMBED, {"v": "now"})], 1.0)
    system.handle([Want("s", "now")], 2.0)
    settled, start = system.handle([BatchDone("e", 0, busy.batch, [(1,)])], 3.0)
    assert settled == Settled("s", "v", (1,))
    assert isinstance(start, StartBatch)
    settled, start = system.handle([BatchDone("e", 0, start.batch, [(2,)])], 4.0)
    assert settled == Settled("s", "now", (2,))
    assert isinstance(start, StartBatch)


def test_a_want_ends_at_its_deadline_and_nothing_else_does() -> None:
    system = CheckedSystem([batch_engine()])
    system.handle([Open("s"), Extend("s", EMBED), Want("s", "v", deadline_s=5.0)], 0.0)
    assert system.alarms_s == [5.0]
    assert system.queries["s"].graph.demands
    system.handle([Wake()], 5.0)
    assert system.queries["s"].graph.demands == {}
    system.handle([Provide("s", "x", "x")], 6.0)
    assert len(system.queries) == 1


def test_a_session_ends_with_its_deadline() -> None:
    system = CheckedSystem([batch_engine()])
    system.handle([Open("s", QueryRecord(deadline_s=5.0)), Extend("s", EMBED), Provide("s", "x", "x")], 0.0)
    *_, settled, reply = system.handle([Wake()], 5.0)
    assert isinstance(settled, Settled)
    assert isinstance(settled.value, Failure)
    assert isinstance(settled.value.error, DeadlineExceeded)
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, DeadlineExceeded)


def test_closing_settles_what_is_open_and_replies_with_nothing() -> None:
    system = CheckedSystem([batch_engine()])
    system.handle([Open("s"), Extend("s", EMBED)], 0.0)
    *settled, reply = system.handle([Close("s"), Close("s"), Drop("s", "v"), Unwant("s", "v")], 1.0)
    assert [action.name for action in settled if isinstance(action, Settled)] == ["x", "v"]
    assert reply == Reply("s", {}, None)
    assert not system.queries


def test_dropping_cancels_what_only_serves_that_variable() -> None:
    session = Session("q")
    session.provide("x", "x")
    (work,) = session.extend(CHAIN, {}).work
    session.extend(EMBED, {"x": "c"})
    outcome = session.drop("c")
    assert outcome.withdrawn == [], "another graph reads it"
    ((name, value),) = outcome.settled
    assert name == "c"
    assert isinstance(value, Failure)
    assert isinstance(value.error, QueryCancelled)
    assert {node.name for node in session.drop("v").withdrawn} == {"a", "b", "c", "v"}
    assert session.complete(work.node.id, 0, ["late"]).work == []


def test_dropping_an_input_that_never_came_fails_its_readers() -> None:
    session = Session("q")
    session.extend(EMBED, {})
    outcome = session.drop("x")
    assert [name for name, _ in outcome.settled] == ["x", "v"]
    assert all(isinstance(value, Failure) for _, value in outcome.settled)


def test_an_effect_is_not_cancelled() -> None:
    session = Session("q")
    session.provide("x", "x")
    saving = compiled('graph s(%x: text)\n!s = call(%x) {result="effect"} : effect @e\nreturn %s')
    (work,) = session.extend(saving, {}).work
    assert session.drop("s").withdrawn == []
    session.complete(work.node.id, 0, [True])
    assert not session.graph.nodes


def test_failures_flow_past_select_and_through_all_else() -> None:
    session = Session("q")
    graph = compiled(
        """
        graph f(%x: text, %y: text, %z: list[text])
          %best = select(%x, %y) : text
          %none = select(%x, %z[0]) : text
          %both = aggregate(%y, %z, %x) : list[text]
          %skip = call(%x, when=%z[9]) {result="text"} : text @e
          return %best, %none, %both, %skip
        """
    )
    session.extend(graph, {})
    settled: dict[str, object] = {}
    for name, value in (("x", failure("no x")), ("y", "y"), ("z", [failure("no item")])):
        settled.update(session.provide(name, value).settled)
    assert settled["best"] == "y"
    assert isinstance(settled["none"], Failure)
    assert settled["none"].error.message == "no x", "nothing is present"
    assert isinstance(settled["both"], Failure)
    assert settled["both"].error.message == "no item", "the first of its inputs, by index"
    assert settled["skip"] is ABSENT, "a branch that is not taken cannot fail"


def test_two_graphs_do_not_produce_one_variable() -> None:
    session = Session("q")
    session.extend(EMBED, {})
    with pytest.raises(UserError, match="two graphs produce the variable 'v'"):
        session.extend(EMBED, {"x": "other"})
    with pytest.raises(UserError, match="g reads and produces the variable 'same'"):
        session.extend(EMBED, {"x": "same", "v": "same"})


def test_a_bug_in_a_scheduler_ends_the_queries_it_concerns() -> None:
    system = CheckedSystem([batch_engine("e"), batch_engine("other")])
    elsewhere = compiled("graph g(%x: text)\n%v = embed(%x) : vector @other\nreturn %v")
    events = [Submit("1", EMBED, {"x": "x"}), Submit("2", elsewhere, {"x": "x"})]
    start, fine = system.handle(events, 0.0)
    assert isinstance(start, StartBatch)
    assert isinstance(fine, StartBatch)

    def bug(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    system.schedulers["e"].done = bug  # type: ignore[method-assign, union-attr, assignment]
    (reply,) = system.handle([BatchDone("e", 0, start.batch, [(1,)])], 1.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, InternalError)
    assert reply.error.message == "ZeroDivisionError: a bug"
    assert system.handle([BatchDone("other", 0, fine.batch, [(1,)])], 2.0) == [Reply("2", {"v": (1,)})]


def test_a_bug_in_a_policy_ends_those_who_wait_there() -> None:
    system = CheckedSystem([batch_engine("e")])

    def bug(now_s: float) -> None:
        raise ZeroDivisionError("a bug")

    schedule = system.schedulers["e"].schedule
    system.schedulers["e"].schedule = bug  # type: ignore[method-assign, assignment]
    (reply,) = system.handle([Submit("1", EMBED, {"x": "x"})], 0.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, InternalError)
    system.schedulers["e"].schedule = schedule  # type: ignore[method-assign]
    (start,) = system.handle([Submit("2", EMBED, {"x": "x"})], 1.0)
    assert isinstance(start, StartBatch)
