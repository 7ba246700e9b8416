"""Sessions by hand: what is wanted goes first, what is dropped goes, and values live as long as needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.machines import CheckedSystem, batch_engine, compiled, llm_engine

from stretto.apps.vocabulary import DEFAULT
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph, Ref
from stretto.model.deployment import Deployment
from stretto.model.errors import DeadlineExceeded, EngineFailure, InternalError, QueryCancelled, UserError
from stretto.model.tasks import Done, QueryRecord
from stretto.model.values import ABSENT, Failure
from stretto.sched.actions import Action, Admit, CancelTask, Reply, Settled, StartBatch
from stretto.sched.engine_events import BatchDone, LLMReport
from stretto.sched.messages import Cancel, Close, Drop, Extend, Open, Provide, Submit, Unwant, Wake, Want
from stretto.sched.orders.arrival import PerInvocation
from stretto.sched.orders.order import Fits, Hold, OrderConfig, Rank, Take
from stretto.sched.queries.demand import NOBODY, Demand
from stretto.sched.queries.request import QueueEntry
from stretto.sched.queries.session import SessionMachine

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
SAY = compiled(
    """
    graph s(%x: text)
      %k = prefill([%x]) : kv @llm
      %y = decode(%k) {max_tokens=9} : text @llm
      return %y
    """
)


def failure(message: str) -> Failure:
    return Failure(EngineFailure(message, step="somewhere"))


def test_a_variable_settles_once() -> None:
    session = SessionMachine("q")
    assert session.provide("x", 1).settled == [("x", 1)]
    assert session.provide("x", 2).settled == []
    (work,) = session.extend(EMBED, {}).work
    assert work.inputs == {"texts": 1}
    assert session.provide("v", 3).settled == [], "it comes of a graph"
    assert session.complete(work.node.id, 0, [(7,)]).settled == [("v", (7,))]
    assert session.complete(work.node.id, 0, [(8,)]).settled == []


COPY = compile_graph(Graph("copy", (("x", "text"),), (), (), (("y", Ref("x")),)), {})
CALL = compiled('graph call(%x: text)\n%y = call(%x) {result="text"} : text @e\nreturn %y')
BEHIND = compiled(
    """
    graph behind(%x: text, %z: text)
      %w = call(%x) {result="text"} : text @e
      %y = call(%z) {result="text"} : text @e
      order w > y
      return %y
    """
)
PAIR = compiled(
    """
    graph pair(%a: text, %b: text)
      %c = call(%a) {result="text"} : text @e
      %d = call(%b) {result="text"} : text @e
      return %c, %d
    """
)


@pytest.mark.parametrize("forth", [COPY, CALL])
@pytest.mark.parametrize("back", [COPY, CALL])
def test_a_variable_that_would_come_of_itself_fails(forth: ExecutionGraph, back: ExecutionGraph) -> None:
    """Otherwise its readers would wait for ever; a circle of copies was followed without end."""
    session = SessionMachine("q")
    session.want("one")
    assert not session.extend(forth, {"x": "one", "y": "two"}).settled
    found = dict(session.extend(back, {"x": "two", "y": "one"}).settled)
    session.check_invariants()
    for name in ("one", "two"):
        value = found[name]
        assert isinstance(value, Failure)
        assert "the variable 'one' would come of itself" in str(value.error)
    assert not session.graph.nodes


def test_a_step_does_not_wait_for_one_before_it_that_waits_for_its_value() -> None:
    session = SessionMachine("q")
    session.extend(BEHIND, {"x": "one", "y": "two"})
    session.provide("z", "z")
    outcome = session.extend(CALL, {"x": "two", "y": "one"})
    assert [name for name, _ in outcome.settled] == ["one"]
    (work,) = outcome.work
    assert session.complete(work.node.id, 0, ["y"]).settled == [("two", "y")]


def test_graphs_may_read_what_others_produce_in_both_directions() -> None:
    """Outputs of one graph come of different inputs, so these variables do not come of themselves."""
    session = SessionMachine("q")
    session.extend(PAIR, {})
    session.extend(CALL, {"x": "c", "y": "b"})
    outcome, found = session.provide("a", "a"), dict[str, object]()
    for result in ("c", "b", "d"):
        (work,) = outcome.work
        outcome = session.complete(work.node.id, 0, [result])
        found |= dict(outcome.settled)
    assert found == {"c": "c", "b": "b", "d": "d"}


def test_values_inside_a_graph_are_freed_after_their_last_reader() -> None:
    session = SessionMachine("q")
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
    session = SessionMachine("q", QueryRecord(tenant="acme"))
    session.provide("x", "x")
    (work,) = session.extend(EMBED, {}).work
    assert work.demand == NOBODY
    assert work.record.tenant == "acme"
    wanted = Demand("throughput", job="v")
    assert session.want("v").demands == [(work.node, wanted)]
    assert session.want("v").demands == [], "a second one"
    assert session.unwant("v").demands == []
    assert session.unwant("v").demands == [(work.node, NOBODY)]
    assert session.unwant("v").demands == []
    session.want("later")
    (work,) = session.extend(EMBED, {"v": "later"}).work
    assert work.demand == Demand("throughput", job="later"), (
        "it was wanted before it was known what it comes of"
    )


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
    session = system.queries["s"]
    assert isinstance(session, SessionMachine)
    assert session.graph.demands
    system.handle([Wake()], 5.0)
    assert session.graph.demands == {}
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
    session = SessionMachine("q")
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


def test_a_variable_that_is_an_item_of_a_dropped_one_still_gets_its_value() -> None:
    rows = 'call(%x) {result="list[list[text]]"} : list[list[text]] @e'
    session = SessionMachine("q")
    session.provide("x", "x")
    (work,) = session.extend(
        compiled(f"graph rows(%x: text)\n%y = {rows}\nreturn %y[0]"), {"y[0]": "row"}
    ).work
    session.extend(compiled("graph first(%x: list[text])\nreturn %x[0]"), {"x": "row", "x[0]": "item"})
    outcome = session.drop("row")
    assert outcome.withdrawn == []
    assert session.complete(work.node.id, 0, [[["text"]]]).settled == [("item", "text")]


def test_a_dropped_item_takes_the_work_behind_it_along() -> None:
    rows = 'call(%x) {result="list[list[text]]"} : list[list[text]] @e'
    session = SessionMachine("q")
    session.provide("x", "x")
    session.extend(compiled(f"graph rows(%x: text)\n%y = {rows}\nreturn %y[0]"), {"y[0]": "row"})
    session.extend(compiled("graph first(%x: list[text])\nreturn %x[0]"), {"x": "row", "x[0]": "item"})
    assert session.drop("row").withdrawn == []
    assert [node.name for node in session.drop("item").withdrawn] == ["y"]


def test_text_of_a_dropped_variable_is_not_shown_under_its_name() -> None:
    """Another graph reads it, so it goes on; a new variable has the name."""
    session = SessionMachine("q")
    session.extend(compiled('graph r(%b: text)\n%c = call(%b) {result="text"} : text @e\nreturn %c'), {})
    answer = compiled("graph a(%q: text)\n%k = prefill([%q]) : kv @l\n%b = decode(%k) : text @l\nreturn %b")
    session.extend(answer, {})
    (work,) = session.provide("q", "x").work
    assert session.deliver(work.node.id, 0, "old").text == [("b", "old")]
    session.drop("b")
    session.provide("p", "y")
    (other,) = session.extend(answer, {"q": "p"}).work
    assert session.deliver(work.node.id, 3, " text").text == []
    assert session.deliver(other.node.id, 0, "new").text == [("b", "new")]


def test_dropping_an_input_that_never_came_fails_its_readers() -> None:
    session = SessionMachine("q")
    session.extend(EMBED, {})
    outcome = session.drop("x")
    assert [name for name, _ in outcome.settled] == ["x", "v"]
    assert all(isinstance(value, Failure) for _, value in outcome.settled)


def test_an_effect_is_not_cancelled() -> None:
    session = SessionMachine("q")
    session.provide("x", "x")
    saving = compiled('graph s(%x: text)\n!s = call(%x) {result="effect"} : effect @e\nreturn %s')
    (work,) = session.extend(saving, {}).work
    assert session.drop("s").withdrawn == []
    session.complete(work.node.id, 0, [True])
    assert not session.graph.nodes


def test_failures_flow_past_select_and_through_all_else() -> None:
    session = SessionMachine("q")
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


def test_text_of_what_a_step_expands_to_streams_under_the_variables_name() -> None:
    body = compiled("graph b(%x: text)\n%k = prefill([%x]) : kv @llm\n%y = decode(%k) : text @llm\nreturn %y")
    grows = compiled('graph g(%x: text)\n%y = expand(%x) {body="b", result="text"} : text\nreturn %y')
    session = SessionMachine("q", expand=lambda name, inputs: body)
    session.extend(grows, {"x": "question", "y": "answer"})
    (request,) = session.provide("question", "Who?").work
    assert session.deliver(request.node.id, 0, "Hel").text == [("answer", "Hel")]


def test_two_graphs_do_not_produce_one_variable() -> None:
    session = SessionMachine("q")
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

    system.schedulers["e"].done = bug  # type: ignore[method-assign, union-attr]
    stop, reply = system.handle([BatchDone("e", 0, start.batch, [(1,)])], 1.0)
    assert stop == CancelTask("e", 0, start.tasks[0].id), (
        "as far as the scheduler knows, the batch still runs"
    )
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, InternalError)
    assert reply.error.message.startswith("ZeroDivisionError: a bug")
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


class Raising(PerInvocation):
    """An order that raises in one of its methods when it comes to an entry of the query "bad"."""

    def __init__(self, config: OrderConfig, method: str) -> None:
        super().__init__(config)
        self._method = method

    def add(self, entry: QueueEntry) -> None:
        self._raise_at("add", entry)
        super().add(entry)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        chosen = super().take(to_fill, fits, now_s)
        if isinstance(chosen, Take):
            self._raise_at("take", chosen.entry)
        return chosen

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        self._raise_at("taken", entry)
        super().taken(entry, num_items)

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        self._raise_at("started", entry)
        super().started(entry, lo, hi)

    def remove(self, entry: QueueEntry) -> None:
        self._raise_at("remove", entry)
        super().remove(entry)

    def rank(self, entry: QueueEntry) -> Rank:
        self._raise_at("rank", entry)
        return super().rank(entry)

    def _raise_at(self, method: str, entry: QueueEntry) -> None:
        if method == self._method and entry.query == "bad":
            raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("method", ["add", "take", "taken", "started"])
def test_an_order_that_raises_ends_the_queries_that_have_work_there_and_frees_what_they_held(
    method: str,
) -> None:
    """Nothing waits for a timeout: there is none."""
    vocabulary = DEFAULT.with_policy("raising", lambda config: Raising(config, method))
    system = CheckedSystem([batch_engine(policy="raising", instances=2)], vocabulary=vocabulary)
    events = [Submit(query, EMBED, {"x": query}) for query in ("fine", "bad", "waiting")]
    actions = system.handle(events, 0.0)
    starts = [action for action in actions if isinstance(action, StartBatch)]
    for start in starts:
        actions += system.handle([BatchDone("e", start.instance, start.batch, [(1,)])], 1.0)
    bad = system.replies["bad"].error
    assert isinstance(bad, InternalError)
    assert bad.message.startswith("ZeroDivisionError: a bug (test_session.py, line ")
    assert system.is_idle()
    later = [Submit(f"later {number}", EMBED, {"x": "x"}) for number in range(2)]
    again = [action for action in system.handle(later, 2.0) if isinstance(action, StartBatch)]
    assert {start.instance for start in again} == {0, 1}
    for start in again:
        system.handle([BatchDone("e", start.instance, start.batch, [(2,)])], 3.0)
    assert system.replies["later 0"].outputs == {"v": (2,)}
    assert system.is_idle()


@pytest.mark.parametrize("engine", [batch_engine, llm_engine])
def test_an_order_that_raises_when_a_query_leaves_starts_no_work_twice(
    engine: Callable[..., Deployment],
) -> None:
    """What the last `schedule` decided has been carried out: a batch with an effect would happen twice."""
    vocabulary = DEFAULT.with_policy("raising", lambda config: Raising(config, "remove"))
    limits = {"max_running": 1} if engine is llm_engine else {"max_batch": 1}
    system = CheckedSystem([engine(policy="raising", **limits)], vocabulary=vocabulary)
    app = SAY if engine is llm_engine else EMBED
    actions = system.handle([Submit(query, app, {"x": query}) for query in ("fine", "bad")], 0.0)
    actions += system.handle([Cancel("bad")], 1.0)
    assert len([action for action in actions if isinstance(action, StartBatch | Admit)]) == 1
    assert isinstance(system.replies["bad"].error, QueryCancelled)
    assert isinstance(system.replies["fine"].error, InternalError)


@pytest.mark.parametrize("method", ["add", "take", "taken", "started", "rank"])
def test_the_same_for_an_llm(method: str) -> None:
    vocabulary = DEFAULT.with_policy("raising", lambda config: Raising(config, method))
    system = CheckedSystem([llm_engine(policy="raising", max_running=2)], vocabulary=vocabulary)

    def answer(actions: list[Action], now_s: float) -> None:
        for action in actions:
            if isinstance(action, Admit):
                system.handle([LLMReport("llm", action.instance, Done(action.task.id, "yes"))], now_s)

    answer(
        system.handle([Submit(query, SAY, {"x": query}) for query in ("fine", "bad", "waiting")], 0.0), 1.0
    )
    answer(system.handle([Submit("later", SAY, {"x": "x"})], 2.0), 3.0)
    assert isinstance(system.replies["bad"].error, InternalError)
    assert system.replies["later"].outputs == {"y": "yes"}
    assert system.is_idle()
