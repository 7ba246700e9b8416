"""Which LLM requests of a session are task groups, and what schedulers are told when that changes."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from support.machines import CheckedSystem, compiled, llm_engine

from stretto.model.errors import EngineFailure
from stretto.model.tasks import Done, QueryRecord, Usage
from stretto.model.values import KV, Failure, Segment
from stretto.sched.actions import Admit
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Close, Extend, Open, Provide, Want
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.session import SessionMachine

CALL = compiled(
    """
    graph call(%x: text)
      %kv = prefill([%x]) : kv @llm
      %y = decode(%kv) {max_tokens=10} : text @llm
      return %y
    """
)
JOIN = compiled(
    """
    graph reduce(%a: text, %b: text)
      %all = aggregate(a=%a, b=%b) {join=" "} : text
      %kv = prefill([%all]) : kv @llm
      %y = decode(%kv) {max_tokens=10} : text @llm
      return %y
    """
)
EACH = compiled(
    """
    graph each(%xs: list[text])
      %kv = prefill([each %xs]) : kv @llm
      %ys = decode(each %kv) {max_tokens=10} : list[text] @llm
      return %ys
    """
)


def told(outcome: Outcome) -> dict[str, tuple[str | None, str, str]]:
    """The class, job and group that schedulers are told, by the session's variable or the node."""
    return {
        f"{node.name}{node.id}": (demand.preference, demand.job, demand.group)
        for node, demand in outcome.demands
        if node.op == "decode"
    }


def groups(session: SessionMachine) -> list[tuple[str | None, str]]:
    """The class and group of each decode that has not ended, in order."""
    graph = session.graph
    found = [graph._demand(node) for node in graph.nodes.values() if node.op == "decode"]
    return [(demand.preference, demand.group) for demand in found]


def map_reduce() -> SessionMachine:
    session = SessionMachine("q")
    session.extend(CALL, {"x": "one", "y": "a"})
    session.extend(CALL, {"x": "two", "y": "b"})
    session.extend(JOIN, {"y": "end"})
    return session


def test_siblings_of_a_stage_are_batched_and_the_last_step_is_not() -> None:
    session = map_reduce()
    assert groups(session) == [(None, "")] * 3
    session.want("end", "latency")
    assert groups(session) == [("throughput", "end#2"), ("throughput", "end#2"), ("latency", "")]


def test_what_is_wanted_for_throughput_has_no_groups() -> None:
    session = map_reduce()
    session.want("end", "throughput")
    assert groups(session) == [("throughput", "")] * 3
    assert not len(session.graph.groups)


def test_a_late_stricter_get_makes_a_group_and_its_end_undoes_it() -> None:
    session = map_reduce()
    session.want("end", "throughput")
    assert list(told(session.want("end", "latency")).values()) == [
        ("throughput", "end", "end#2"),
        ("throughput", "end", "end#2"),
        ("latency", "end", ""),
    ]
    session.unwant("end", "latency")
    assert groups(session) == [("throughput", "")] * 3
    assert not len(session.graph.groups)


def test_a_sibling_that_comes_later_makes_a_group_of_the_one_that_waits() -> None:
    session = SessionMachine("q")
    session.extend(JOIN, {"y": "end"})
    session.want("end", "latency")
    session.extend(CALL, {"x": "one", "y": "a"})
    assert groups(session) == [("latency", ""), ("latency", "")]
    outcome = session.extend(CALL, {"x": "two", "y": "b"})
    assert list(told(outcome).values()) == [("throughput", "end", "end#2")] * 2


def test_the_last_request_of_a_group_is_still_in_it() -> None:
    session = map_reduce()
    session.want("end", "latency")
    (work,) = session.provide("one", "x").work
    session.complete(work.node.id, 0, [(KV((Segment("x"),)), "said")])
    assert groups(session) == [("throughput", "end#2"), ("latency", "")]
    (work,) = session.provide("two", "x").work
    assert work.demand.group == "end#2"
    session.complete(work.node.id, 0, [Failure(EngineFailure("broken"))])
    assert not len(session.graph.groups), "all that needs it has failed"


def test_a_step_for_each_item_is_a_group_by_itself() -> None:
    session = SessionMachine("q")
    session.extend(EACH, {})
    session.want("ys", "latency")
    assert groups(session) == [("throughput", "ys#1")]


def test_two_jobs_of_a_session_are_two_groups() -> None:
    session = SessionMachine("q")
    for job in "xy":
        session.extend(CALL, {"x": f"{job}1", "y": f"{job}a"})
        session.extend(CALL, {"x": f"{job}2", "y": f"{job}b"})
        session.extend(JOIN, {"a": f"{job}a", "b": f"{job}b", "y": job})
        session.want(job, "latency")
    assert [group for _, group in groups(session)] == ["x#2", "x#2", "", "y#2", "y#2", ""]


def test_one_stage_of_two_wanted_values_belongs_to_the_first() -> None:
    """Figure 9 of the paper: all that both come of is of one job."""
    session = map_reduce()
    session.extend(CALL, {"x": "end", "y": "a1"})
    session.extend(CALL, {"x": "end", "y": "a2"})
    session.want("a2", "latency")
    session.want("a1", "latency")
    assert groups(session) == [
        ("throughput", "a1#3"),
        ("throughput", "a1#3"),
        ("latency", ""),
        ("latency", ""),
        ("latency", ""),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_groups_agree_with_a_search_of_all_stages(seed: int) -> None:
    """Random graphs and wants in random order; nothing has ended."""
    draw = random.Random(seed)
    session = SessionMachine("q", QueryRecord(criteria="latency"))
    names = ["x0", "x1"]
    wants: list[str] = []
    for number in range(2, 20):
        names.append(f"x{number}")
        if draw.random() < 0.5:
            session.extend(CALL, {"x": draw.choice(names[:-1]), "y": names[-1]})
        else:
            a, b = draw.sample(names[:-1], 2)
            session.extend(JOIN, {"a": a, "b": b, "y": names[-1]})
        if draw.random() < 0.4:
            wants.append(draw.choice(names[2:]))
            session.want(wants[-1])
        if wants and draw.random() < 0.3:
            session.unwant(wants.pop(draw.randrange(len(wants))))
        graph = session.graph
        assert graph.demands is not None
        members = defaultdict(list)
        for node_id, demand in graph.demands.items():
            if graph.nodes[node_id].op == "decode":
                members[demand.job, demand.stage].append(node_id)
        expected = {
            node_id: f"{job}#{stage}" if len(found) > 1 else ""
            for (job, stage), found in members.items()
            for node_id in found
        }
        found = {node_id: graph._demand(graph.nodes[node_id]).group for node_id in expected}
        assert found == expected
        assert not any(demand.group for demand in graph.demands.values())


def test_instances_are_told_the_class_and_nothing_is_left_of_a_closed_session() -> None:
    system = CheckedSystem([llm_engine(placement="parrot", max_running=8)])
    system.handle(
        [Open("q"), *(Extend("q", CALL, {"x": n, "y": y}) for n, y in (("1", "a"), ("2", "b")))], 0.0
    )
    system.handle([Extend("q", JOIN, {"y": "end"}), Want("q", "end", "latency")], 0.0)
    actions = system.handle([Provide("q", "1", "x"), Provide("q", "2", "y")], 0.0)
    admits = [action for action in actions if isinstance(action, Admit)]
    assert [admit.task.objective for admit in admits] == ["throughput", "throughput"]
    assert "siblings" in admits[1].reason
    ended = [LLMReport("llm", a.instance, Done(a.task.id, "said", Usage())) for a in admits]
    (reduce,) = [action for action in system.handle(ended, 1.0) if isinstance(action, Admit)]
    assert reduce.task.objective == "latency"
    system.handle([Close("q")], 2.0)
    assert system.is_idle()
