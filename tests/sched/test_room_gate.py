"""Requests of an LLM engine that are held, as the KV memory has no room for their programs."""

from __future__ import annotations

import pytest

from benchmarks.common.fake_engines import FakeLLM
from stretto.graph.compile import compile_graph
from stretto.graph.text import parse_graph
from stretto.model.deployment import deploy
from stretto.model.errors import ConfigError, NoRoom
from stretto.model.profile import Profile
from stretto.model.tasks import Done, QueryRecord, Usage
from stretto.sched.actions import Action, Admit, Reply, Settled
from stretto.sched.engine_events import AddInstance, InstanceReady, InstanceSuspected, LLMReport
from stretto.sched.messages import Cancel, EndProgram, Event, Extend, Open, Provide, Submit, Wake
from stretto.sched.system import System
from stretto.sim.agent_load import request_graph
from stretto.sim.synthetic_output import filler

GRAPH = request_graph(10)
MAP = compile_graph(
    parse_graph("""
    graph request(%texts: list[text])
      %kv   = prefill([each %texts]) : list[kv] @llm
      %text = decode(each %kv) {max_tokens=10} : list[text] @llm
      return %text
"""),
    {},
)
SECOND = compile_graph(
    parse_graph("""
    graph request(%prompt: text)
      %kv.2 = prefill([%prompt]) : kv @llm
      %text.2 = decode(%kv.2) {max_tokens=10} : text @llm
      return %text.2
"""),
    {},
)
TWO = compile_graph(
    parse_graph("""
    graph two(%prompt: text)
      %k = prefill([c"a ", %prompt]) : kv @llm
      %a = decode(%k) {max_tokens=10} : text @llm
      %l = prefill([c"b ", %prompt]) : kv @llm
      %b = decode(%l) {max_tokens=10} : text @llm
      return %a, %b
"""),
    {},
)
KV = 10_000


class Machine:
    """The schedulers of one LLM with a small memory."""

    def __init__(self, **settings: object) -> None:
        settings = {"kv_tokens": KV, "timeout_s": None, "profile": Profile(0.01, 0.001), **settings}
        llm = deploy("llm", FakeLLM, contract="llm", max_batch=KV, **settings)  # type: ignore[arg-type]
        self.system = System([llm])
        self.now_s = 0.0
        self.handle(AddInstance("llm", llm.replicas[0]))
        self.handle(InstanceReady("llm", 0))
        self.tasks: dict[str, int] = {}

    def handle(self, *events: Event) -> list[Action]:
        actions = self.system.handle(events, self.now_s)
        self.system.check_invariants()
        return actions

    def admitted(self, actions: list[Action]) -> list[str]:
        """The queries that were sent out."""
        sent = [action for action in actions if isinstance(action, Admit)]
        self.tasks.update({action.task.query: action.task.id for action in sent})
        return [action.task.query for action in sent]

    def submit(self, query: str, tokens: int, program: str = "") -> list[str]:
        prompt = filler(program or query, tokens)
        event = Submit(query, GRAPH, {"prompt": prompt}, is_streamed=False, program=program)
        return self.admitted(self.handle(event))

    def end(self, query: str) -> list[str]:
        done = Done(self.tasks[query], "text", Usage(1000, 0, 5))
        return self.admitted(self.handle(LLMReport("llm", 0, done)))


def test_programs_that_do_not_fit_are_held_and_said_to_be() -> None:
    machine = Machine()
    assert machine.submit("a1", 5000, "a") == ["a1"]
    assert machine.submit("b1", 3000, "b") == ["b1"]
    machine.now_s = 2.0
    assert machine.submit("c1", 3000, "c") == []
    (held,) = machine.system.snapshot().engines[0].held
    assert (held.query, held.program, held.since_s) == ("c1", "c", 2.0)
    assert held.reason.startswith("its program needs 3010 tokens of KV memory; 2 contexts take 8020 of 10000")
    assert machine.system.held("c1") == [held]
    assert machine.system.held("a1") == []
    assert machine.system.snapshot().engines[0].num_waiting == 1
    assert machine.system.snapshot().engines[0].instances[0].claimed_tokens == 8020


def test_the_end_of_a_program_lets_the_next_one_in_and_the_trace_says_how_long_it_waited() -> None:
    machine = Machine()
    machine.submit("a1", 5000, "a")
    machine.submit("b1", 3000, "b")
    machine.submit("c1", 3000, "c")
    assert machine.end("a1") == [], "a is likely to come back"
    machine.now_s = 3.0
    actions = machine.handle(EndProgram("a"))
    (sent,) = [action for action in actions if isinstance(action, Admit)]
    assert (sent.task.query, sent.held_s) == ("c1", 3.0)
    assert sent.reason.endswith("held 3 s for room")


def test_a_program_that_is_inside_goes_on_while_others_are_held() -> None:
    machine = Machine()
    machine.submit("a1", 5000, "a")
    machine.submit("b1", 3000, "b")
    machine.submit("c1", 3000, "c")
    machine.end("a1")
    assert machine.submit("a2", 5100, "a") == ["a2"]


def test_queries_of_one_call_are_held_by_nobody_who_does_not_come_back() -> None:
    machine = Machine(max_running=100)
    assert [machine.submit(f"q{n}", 1500) for n in range(6)] == [[f"q{n}"] for n in range(6)]
    assert machine.system.snapshot().engines[0].instances[0].claimed_tokens == 0


def test_the_items_of_a_list_take_no_room_from_programs_that_come_back() -> None:
    """A wide map that waits in the queue is not what the memory is full of."""
    machine = Machine(max_running=4)
    machine.submit("a1", 3000, "a")
    texts = [filler(f"{number}", 1000) for number in range(20)]
    machine.handle(Submit("map", MAP, {"texts": texts}, is_streamed=False, program="map"))
    assert machine.system.snapshot().engines[0].instances[0].claimed_tokens == 3010
    machine.submit("b1", 3000, "b")
    assert not machine.system.snapshot().engines[0].held


def test_steps_of_one_name_are_learned_together() -> None:
    """What is known of `merged` holds for `merged.2`, which no query has had before."""
    machine = Machine(max_running=100)
    for number in range(10):
        machine.submit(f"q{number}", 10, f"q{number}")
        machine.end(f"q{number}")
    machine.now_s = 60.0
    machine.submit("a1", 9000, "a")
    inside = machine.system.snapshot().engines[0].instances[0].claimed_tokens
    assert inside == 0, "no query of the kind has come back"
    machine.handle(Submit("b1", SECOND, {"prompt": filler("b", 9000)}, is_streamed=False, program="b"))
    assert machine.system.snapshot().engines[0].instances[0].claimed_tokens == 0


def test_a_held_query_that_is_cancelled_is_gone() -> None:
    machine = Machine()
    machine.submit("a1", 8000, "a")
    machine.submit("b1", 8000, "b")
    machine.submit("c1", 7000, "c")
    machine.handle(Cancel("b1"))
    assert [held.query for held in machine.system.snapshot().engines[0].held] == ["c1"]
    machine.handle(EndProgram("a"))
    assert machine.end("a1") == ["c1"]


def test_holds_may_have_a_limit() -> None:
    machine = Machine(max_hold_s=30.0)
    machine.submit("a1", 8000, "a")
    machine.now_s = 5.0
    machine.submit("b1", 8000, "b")
    machine.now_s = 34.0
    assert not [action for action in machine.handle(Wake()) if isinstance(action, Reply)]
    machine.now_s = 35.0
    (reply,) = [action for action in machine.handle(Wake()) if isinstance(action, Reply)]
    assert reply.query == "b1"
    assert isinstance(reply.error, NoRoom)
    assert reply.error.retry_after_s >= 1.0
    assert not machine.system.snapshot().engines[0].held


def test_requests_of_a_session_that_fail_as_nothing_serves_give_their_room_back() -> None:
    machine = Machine(max_running=1, recover_s=5.0)
    machine.handle(Open("s", QueryRecord(program="p")))
    (output, *_), *_ = GRAPH.outputs
    for number in range(3):
        prompt = Provide("s", f"p{number}", filler(f"{number}", 3000))
        machine.handle(Extend("s", GRAPH, {"prompt": f"p{number}", output: f"o{number}"}), prompt)
    (instance,) = machine.system.snapshot().engines[0].instances
    assert instance.claimed_tokens > 9000
    machine.handle(InstanceSuspected("llm", 0, "silent"))
    machine.now_s = 1000.0
    failures = [action for action in machine.handle(Wake()) if isinstance(action, Settled)]
    assert len(failures) == 2, "one still runs"
    (instance,) = machine.system.snapshot().engines[0].instances
    assert instance.claimed_tokens == 3010


def test_nothing_is_held_where_it_is_switched_off_or_nothing_is_known() -> None:
    for settings in ({"holds_programs": False}, {"kv_tokens": None, "placement": "least_loaded"}):
        machine = Machine(**settings)
        machine.submit("a1", 4000, "a")
        machine.end("a1")
        machine.submit("b1", 4000, "b")
        machine.end("b1")
        assert machine.submit("c1", 4000, "c") == ["c1"]


def test_a_limit_of_holds_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="max_hold_s"):
        Machine(max_hold_s=-1.0)


def test_programs_of_two_tenants_with_one_name_are_two() -> None:
    machine = Machine()
    for tenant in ("x", "y"):
        text = filler(tenant, 4000)
        event = Submit(
            f"a of {tenant}", GRAPH, {"prompt": text}, is_streamed=False, program="a", tenant=tenant
        )
        assert machine.admitted(machine.handle(event)) == [f"a of {tenant}"]
    assert machine.submit("b1", 3000, "b") == []
    machine.end("a of x")
    assert machine.admitted(machine.handle(EndProgram("a"))) == [], "nobody's"
    assert machine.admitted(machine.handle(EndProgram("a", "x"))) == ["b1"]


def test_an_old_program_has_a_limited_start_over_a_new_one() -> None:
    machine = Machine()
    machine.submit("old1", 1000, "old")
    machine.end("old1")
    machine.now_s = 5000.0
    machine.submit("a1", 9000, "a")
    machine.submit("new1", 6000, "new")
    machine.now_s = 5400.0
    machine.submit("old2", 6000, "old")
    assert machine.admitted(machine.handle(EndProgram("a"))) == []
    assert machine.end("a1") == ["new1"]


def test_of_queries_that_do_not_come_back_few_are_watched() -> None:
    """Two calls stand side by side in each query, and nobody continues them: the gate cost a sixth more."""
    machine = Machine(max_running=100)
    gate = machine.system.schedulers["llm"]._gate  # type: ignore[union-attr]
    watched = []
    for number in range(200):
        name = f"q{number}"
        machine.handle(Submit(name, TWO, {"prompt": name}, is_streamed=False))
        watched.append(name in gate._of_query)
        tasks = [*machine.system.schedulers["llm"]._running._of_query[name][0]]  # type: ignore[union-attr]
        machine.handle(*(LLMReport("llm", 0, Done(task, "text", Usage(10, 0, 5))) for task in tasks))
    assert all(watched[:30])
    assert 5 < sum(watched[100:]) < 25
