"""The machines composed: events in, actions out, and every query ends exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.machines import CheckedSystem, batch_engine, compiled, llm_engine
from support.systems import KV_HELLO, error_of, started, steps, submit

from stretto.cluster.messages import StartInstance, StopInstance
from stretto.model.errors import (
    BadReply,
    ConfigError,
    DeadlineExceeded,
    EngineFailure,
    EngineTimeout,
    EngineUnavailable,
    InternalError,
    QueryCancelled,
    StrettoError,
    UserError,
)
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask, Piece, Started
from stretto.model.values import ABSENT
from stretto.sched.actions import Action, Admit, CancelTask, Emit, Release, Reply, StartBatch
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceLost, LLMReport
from stretto.sched.messages import Cancel, Submit, Wake

CALL = "graph g(%q: text)\n%A = prefill([%q]) : kv @llm\n%B = decode(%A) : text @llm\nreturn %B"


def test_tenant_and_objective_go_with_every_request_and_each_attempt() -> None:
    system = CheckedSystem([llm_engine()])
    event = Submit("1", compiled(CALL), {"q": "x"}, tenant="acme", objective="latency")
    tasks = [action.task for action in system.handle([event], 0.0) if isinstance(action, Admit)]
    lost = InstanceLost("llm", 0, EngineUnavailable("gone"))
    tasks += [action.task for action in system.handle([lost], 1.0) if isinstance(action, Admit)]
    assert [(task.tenant, task.objective) for task in tasks] == [("acme", "latency")] * 2


def test_requests_of_a_query_know_when_it_arrived() -> None:
    system = CheckedSystem([llm_engine(policy="programs_first")])
    system.handle([Submit("1", compiled(CALL), {"q": "x"})], 3.0)
    assert system.queries["1"].record.arrival_s == 3.0


# --- Teola, Figure 7


FIGURE_7_QUERY_1 = """
    graph one(%q: text)
      %A = prefill([c"A ", %q]) : kv @llm
      %B = prefill([c"B ", %q]) : kv @llm
      %C = decode(%A) {max_tokens=1} : text @small
      %D = web_search(%C) : list[hit] @web
      %b = decode(%B) {max_tokens=1} : text @small
      %E = call(%D, %b) {result="text"} : text @web
      return %E
    """
FIGURE_7_QUERY_2 = """
    graph two(%q: text)
      %G = prefill([c"G ", %q]) : kv @llm
      %H = prefill([c"H ", %q]) : kv @llm
      %I = decode(%H) {max_tokens=1} : text @small
      %J = web_search(%I) : list[hit] @web
      %K = decode(%G) {max_tokens=1} : text @small
      return %J, %K
    """


@pytest.mark.parametrize(
    ("policy", "first"),
    [("topology_aware", ["1.A", "2.H"]), ("throughput", ["1.A", "1.B"]), ("per_invocation", ["1.A", "1.B"])],
)
def test_figure_7_of_teola(policy: str, first: list[str]) -> None:
    """Room for two of four prompts: the blind policies advance one query, topology-aware both.

    B's child also waits for D, which waits for A; so B gains nothing by running now.
    """
    question = "x" * (4 * 511 - 8)
    engines = [
        llm_engine(policy=policy, max_batch=1024),
        llm_engine("small"),
        batch_engine("web"),
    ]
    system = CheckedSystem(engines)
    actions = system.handle(
        [submit("1", FIGURE_7_QUERY_1, q=question), submit("2", FIGURE_7_QUERY_2, q=question)], 0.0
    )
    assert steps(actions) == first
    assert all(
        500 <= sum(len(s.text) for s in a.task.prompt) / 4 <= 512 for a in actions if isinstance(a, Admit)
    )


def test_work_of_one_instant_is_batched_together() -> None:
    """Also with what other events at that instant make ready, and across queries."""
    system = CheckedSystem([batch_engine()])
    (action,) = system.handle([submit("1"), submit("2")], 0.0)
    assert steps([action]) == ["1.v", "2.v"]
    assert isinstance(action, StartBatch)
    actions = system.handle([submit("3"), BatchDone("e", 0, action.batch, [[(1,)], [(2,)]])], 1.0)
    assert actions[:2] == [Reply("1", {"v": [(1,)]}), Reply("2", {"v": [(2,)]})]
    assert steps(actions) == ["3.v"]


def test_a_decode_from_front_to_back() -> None:
    system = CheckedSystem([llm_engine(keeps_state=True)])
    text = """
        graph g(%q: text)
          %k = prefill([c"Say ", %q]) : kv @llm
          %a = decode(%k) {max_tokens=9} : text @llm
          return %a
        """
    (admit,) = system.handle([submit("1", text, q="hi")], 0.0)
    assert isinstance(admit, Admit)
    assert (admit.task.step, admit.task.decode) == ("a", Decode(9))

    def say(event: LLMEvent, now_s: float) -> list[Action]:
        return system.handle([LLMReport("llm", 0, event)], now_s)

    task = admit.task.id
    assert say(Started(task), 1.0) == []
    assert say(Piece(task, "Hel"), 2.0) == [Emit("1", "a", "Hel")]
    assert say(Piece(task, "lo"), 2.0) == [Emit("1", "a", "lo")]
    assert say(Done(task, "Hello"), 3.0) == [Release("llm", 0, "1"), Reply("1", {"a": "Hello"})]
    assert system.is_idle()


def test_a_prefill_ahead_is_stopped_before_its_reader_is_admitted() -> None:
    system = CheckedSystem([llm_engine(), batch_engine()])
    text = """
        graph g(%q: text)
          %ahead = prefill([c"Rules "]) : kv @llm
          %x     = call(%q) {result="text"} : text @e
          %k     = prefill([c"Rules ", %x], hint=%ahead) : kv @llm
          %a     = decode(%k) : text @llm
          return %a
        """
    ahead, call = system.handle([submit("1", text, q="x")], 0.0)
    assert isinstance(ahead, Admit)
    assert isinstance(call, StartBatch)
    stop, admit = system.handle([BatchDone("e", 0, call.batch, ["word"])], 1.0)
    assert stop == CancelTask("llm", 0, ahead.task.id)
    assert steps([admit]) == ["1.a"]


def test_pieces_after_a_retry_are_not_delivered_twice() -> None:
    system = CheckedSystem([llm_engine()])
    (admit,) = system.handle(
        [submit("1", "graph g(%k: kv)\n%a = decode(%k) : text @llm\nreturn %a", k=KV_HELLO)], 0.0
    )
    assert isinstance(admit, Admit)
    system.handle([LLMReport("llm", 0, Piece(admit.task.id, "Hel"))], 1.0)
    start, again = system.handle([InstanceLost("llm", 0, EngineUnavailable("it died"))], 2.0)
    assert isinstance(start, StartInstance)
    assert again == replace(admit, instance=1, task=replace(admit.task, id=admit.task.id + 1))
    assert isinstance(again, Admit)
    assert system.handle([LLMReport("llm", 0, Piece(again.task.id, "Late"))], 3.0) == []
    assert system.handle([LLMReport("llm", 1, Piece(again.task.id, "He"))], 3.0) == []
    assert system.handle([LLMReport("llm", 1, Piece(again.task.id, "llo"))], 4.0) == [Emit("1", "a", "lo")]
    actions = system.handle([LLMReport("llm", 1, Done(again.task.id, "Hello"))], 5.0)
    assert actions == [Reply("1", {"a": "Hello"})]


# --- ends


def test_cancelling_stops_everything_and_answers_once() -> None:
    engines = [llm_engine(keeps_state=True), batch_engine(keeps_state=True, max_batch=1)]
    system = CheckedSystem(engines)
    text = (
        "graph g(%k: kv, %xs: list[text])\n%a = decode(%k) : text @llm\n"
        "%v = embed(each %xs) : list[vector] @e\nreturn %a, %v"
    )
    admit, batch = system.handle([submit("1", text, k=KV_HELLO, xs=["x", "y"])], 0.0)
    assert isinstance(admit, Admit)
    assert isinstance(batch, StartBatch)
    (stop, release, leave_out, reply) = system.handle([Cancel("1"), Cancel("1"), Cancel("unknown")], 1.0)
    assert stop == CancelTask("llm", 0, admit.task.id)
    assert leave_out == CancelTask("e", 0, batch.tasks[0].id)
    assert release == Release("llm", 0, "1")
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, QueryCancelled)
    assert not system.is_idle(), "a batch is answered in any case"
    assert system.handle([LLMReport("llm", 0, Done(admit.task.id, "late"))], 2.0) == []
    assert system.handle([BatchDone("e", 0, batch.batch, [[(1,)]])], 3.0) == [Release("e", 0, "1")]
    assert system.is_idle()


def test_a_deadline_ends_a_query_and_only_that() -> None:
    system = CheckedSystem([batch_engine(max_batch=1)])
    (action,) = system.handle([submit("1", deadline_s=5.0), submit("2"), submit("3", deadline_s=9.0)], 0.0)
    assert isinstance(action, StartBatch)
    assert system.alarms_s == [5.0]
    assert system.handle([Wake()], 4.0) == [], "an early alarm is no deadline"
    assert system.alarms_s == [5.0]
    leave_out, reply = system.handle([Wake()], 5.0)
    assert leave_out == CancelTask("e", 0, action.tasks[0].id)
    assert isinstance(reply, Reply)
    assert isinstance(error_of(system, "1"), DeadlineExceeded)
    assert system.alarms_s == [9.0]
    actions = system.handle([BatchDone("e", 0, action.batch, [[(1,)]])], 6.0)
    assert steps(actions) == ["2.v"]
    system.handle([Wake()], 9.0)
    assert isinstance(error_of(system, "3"), DeadlineExceeded)
    assert sorted(system.replies) == ["1", "3"]


def test_a_deadline_that_has_passed_ends_the_query_at_once() -> None:
    system = CheckedSystem([batch_engine()])
    system.handle([submit("1", deadline_s=-1.0)], 0.0)
    assert system.alarms_s == [-1.0]
    system.handle([Wake()], 0.0)
    assert isinstance(error_of(system, "1"), DeadlineExceeded)


def test_a_query_without_work_ends_at_once() -> None:
    system = CheckedSystem([])
    assert system.handle([submit("1", "graph g(%q: text)\nreturn %q", q="x")], 0.0) == [
        Reply("1", {"q": "x"})
    ]
    assert system.handle([submit("2", "graph g(%q: text)", q="x")], 0.0) == [Reply("2", {})]


def test_an_unresponsive_instance_is_restarted_and_its_work_repeated() -> None:
    engine = batch_engine(timeout_s=5.0, max_attempts=2)
    (replica,) = engine.replicas
    system = CheckedSystem([engine])
    (first,) = system.handle([submit("1")], 0.0)
    assert system.alarms_s == [5.0]
    stop, start, second = system.handle([Wake()], 5.0)
    assert stop == StopInstance("e", 0, "kill")
    assert start == StartInstance("e", 1, replica)
    assert isinstance(first, StartBatch)
    assert isinstance(second, StartBatch)
    assert second.tasks[0].inputs == first.tasks[0].inputs
    assert second.instance == 1
    assert system.alarms_s[-1] == 10.0
    system.handle([BatchDone("e", 0, first.batch, [[(1,)]])], 6.0)
    assert not system.replies, "too late"
    actions = system.handle([Wake()], 10.0)
    assert actions[0] == StopInstance("e", 1, "kill")
    assert isinstance(error_of(system, "1"), EngineTimeout)
    assert error_of(system, "1").step == "v"


def test_throughput_asks_to_be_woken() -> None:
    system = CheckedSystem([batch_engine(policy="throughput", timeout_s=60.0)])
    assert system.handle([submit("1")], 1.0) == []
    assert system.alarms_s[-1] == pytest.approx(1.005)
    assert system.handle([submit("2")], 1.003) == []
    assert system.alarms_s == []
    assert steps(system.handle([Wake()], 1.005)) == ["1.v", "2.v"]
    assert system.alarms_s == [61.005]


# --- one query's troubles


def test_one_failing_query_hurts_no_other() -> None:
    system = CheckedSystem([batch_engine()])
    (batch,) = started(system.handle([submit("1"), submit("2")], 0.0))
    (alone,) = started(system.handle([BatchFailed("e", 0, batch.batch, EngineFailure("broken"))], 1.0))
    assert steps([alone]) == ["1.v"]
    (other,) = started(system.handle([BatchFailed("e", 0, alone.batch, EngineFailure("broken"))], 2.0))
    assert str(error_of(system, "1")) == "step 'v': broken"
    system.handle([BatchDone("e", 0, other.batch, [[(1,)]])], 3.0)
    assert system.replies["2"] == Reply("2", {"v": [(1,)]})


@pytest.mark.parametrize(
    ("text", "inputs", "kind", "message"),
    [
        (
            "%v = embed(%q) : vector @nowhere\nreturn %v",
            {"q": "x"},
            ConfigError,
            "there is no engine 'nowhere'",
        ),
        (
            "%v = embed(%q) : vector @llm\nreturn %v",
            {"q": "x"},
            ConfigError,
            "engine 'llm' does not run embed",
        ),
        ("%k = prefill([%q]) : kv @e\nreturn %k", {"q": "x"}, ConfigError, "engine 'e' does not run prefill"),
        ("return %q", {"p": "x"}, UserError, "the query brings no input 'q'"),
        ('%x = expand(%q) {body="b"} : any\nreturn %x', {"q": "x"}, UserError, "this query cannot expand"),
        ("%t = aggregate(%q) {best=1} : list[hit]\nreturn %t", {"q": 7}, EngineFailure, "step 't'"),
    ],
)
def test_a_query_that_cannot_run_fails_by_itself(
    text: str, inputs: dict[str, Any], kind: type[StrettoError], message: str
) -> None:
    system = CheckedSystem([llm_engine(), batch_engine()])
    actions = system.handle([submit("bad", "graph g(%q: any)\n" + text, **inputs), submit("2")], 0.0)
    assert type(error_of(system, "bad")) is kind
    assert message in str(error_of(system, "bad"))
    assert steps(actions) == ["2.v"]


def test_an_output_of_the_wrong_shape_fails_its_query_alone() -> None:
    text = 'graph g(%q: text)\n%c = call(%q) {result="list[text]"} : list[text] @e\nreturn x=%c[0]'
    system = CheckedSystem([batch_engine()])
    (batch,) = started(system.handle([submit("1", text, q="x"), submit("2")], 0.0))
    system.handle([BatchDone("e", 0, batch.batch, [7, [(1,)]])], 1.0)
    assert isinstance(error_of(system, "1"), BadReply)
    assert system.replies["2"].outputs == {"v": [(1,)]}


def test_an_item_beyond_the_end_of_an_output_is_absent() -> None:
    text = "graph g(%xs: list[text])\nreturn x=%xs[3]"
    system = CheckedSystem([])
    assert system.handle([submit("1", text, xs=["x"])], 0.0) == [Reply("1", {"x": ABSENT})]


@pytest.mark.parametrize("policy", ["topology_aware", "throughput", "per_invocation"])
def test_an_item_larger_than_any_batch_runs_alone(policy: str) -> None:
    text = "graph g(%q: text, %hits: list[hit])\n%r = rerank(%q, %hits) : list[hit] @e\nreturn %r"
    system = CheckedSystem([batch_engine(policy=policy)])
    actions = system.handle([submit("1", text, q="x", hits=["h"] * 9)], 0.0)
    if policy == "throughput" and not actions:
        actions = system.handle([Wake()], 1.0)
    assert [batch.num_units for batch in started(actions)] == [9]


def test_a_bug_in_an_op_of_ones_own_is_reported() -> None:
    system = CheckedSystem([batch_engine()])
    query = submit("1")
    broken = replace(query.egraph.nodes[0].spec, units=lambda inputs: 1 // 0)
    node = replace(query.egraph.nodes[0], spec=broken)
    egraph = replace(query.egraph, nodes=(node,))
    system.handle([replace(query, egraph=egraph)], 0.0)
    error = error_of(system, "1")
    assert (type(error), error.step) == (EngineFailure, query.egraph.nodes[0].name)
    assert "ZeroDivisionError" in error.message


def test_the_registry_is_checked() -> None:
    with pytest.raises(ConfigError, match="two engines are called 'e'"):
        CheckedSystem([batch_engine(), batch_engine()])
    with pytest.raises(ConfigError, match="there is no policy 'best'; there are programs_first"):
        CheckedSystem([batch_engine(policy="best")])


def test_a_query_is_not_submitted_twice() -> None:
    system = CheckedSystem([batch_engine()])
    system.handle([submit("1")], 0.0)
    with pytest.raises(InternalError, match="query '1' is running already"):
        system.handle([submit("1")], 0.0)


def test_expansion_gets_the_passes_of_the_query() -> None:
    seen: list[Any] = []

    def expand(body: str, inputs: Any, passes: tuple[str, ...]) -> Any:
        seen.append((body, dict(inputs), passes))
        return compiled("graph b(%q: text)\n%v = embed(%q) : vector @e\nreturn %v")

    system = CheckedSystem([batch_engine()], expand)
    query = submit("1", 'graph g(%q: text)\n%x = expand(%q) {body="b"} : any\nreturn %x', q="x")
    assert steps(system.handle([replace(query, passes=("drop_dead",))], 0.0)) == ["1.v"]
    assert seen == [("b", {"q": "x"}, ("drop_dead",))]


def test_the_deeper_request_of_a_query_has_the_smaller_rank() -> None:
    text = """
        graph g(%k: kv)
          %a = decode(%k) : text @llm
          %b = decode(%k) {max_tokens=2} : text @llm
          %c = web_search(%b) : list[hit] @e
          return %a, %c
        """
    actions = CheckedSystem([llm_engine(), batch_engine()]).handle([submit("1", text, k=KV_HELLO)], 0.0)
    admitted = [action for action in actions if isinstance(action, Admit)]
    assert [a.task.step for a in admitted] == ["b", "a"]
    assert admitted[0].rank < admitted[1].rank
    assert all(isinstance(a.task, LLMTask) for a in admitted)
