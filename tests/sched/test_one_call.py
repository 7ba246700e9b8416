"""Queries of a single LLM call: the short way and the general one decide the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

import pytest

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.one_call import CallGraphs, PromptMessage, inputs_of_call
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment
from stretto.model.errors import CapacityError, EngineUnavailable, StrettoError
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Done, Failed, LLMEvent, Piece, Started, Usage
from stretto.sched.actions import Action, Admit, Reply
from stretto.sched.engine_events import AddInstance, InstanceLost, InstanceReady, LLMReport
from stretto.sched.messages import Cancel, Event, Submit
from stretto.sched.queries.one_call import OneCall
from stretto.sched.queries.session import SessionMachine
from stretto.sched.system import System

PROMPT = (PromptMessage("system", "be brief"), PromptMessage("user", "why?"))
CALL = CallGraphs().of("llm", PROMPT, {"max_tokens": 9})
GENERAL = copy(CALL)
object.__setattr__(GENERAL, "is_one_call", False)
GENERAL = copy(CALL)
object.__setattr__(GENERAL, "is_one_call", False)
USAGE = Usage(7, 2, 3)


def report(event: Callable[[int], LLMEvent]) -> Callable[[int], Event]:
    """Return the function that makes an instance's report on a task."""
    return lambda task: LLMReport("llm", 0, event(task))


def actions_of(
    egraph: ExecutionGraph, inputs: Mapping[str, object], events: list[Callable[[int], Event]]
) -> list[Action]:
    """Return what a system decides on a call to which `events` happen, which are made of the task's id."""
    deployment = Deployment(Engine("llm", contract="llm", keeps_state=True, max_attempts=1))
    system = System([deployment])
    system.handle([AddInstance("llm", Replica(FakeLLM, FakeLLMConfig()))], 0.0)
    system.handle([InstanceReady("llm", 0)], 0.0)
    actions = system.handle([Submit("q", egraph, inputs, is_streamed=False)], 1.0)
    for kind in map(type, system.queries.values()):
        assert kind is (OneCall if egraph is CALL else SessionMachine)
    task = next((action.task.id for action in actions if isinstance(action, Admit)), -1)
    for now_s, event in enumerate(events, 2):
        actions += system.handle([event(task)], float(now_s))
        system.check_invariants()
    return actions


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ([report(Started), report(lambda task: Done(task, "so", USAGE))], "so"),
        ([report(lambda task: Piece(task, "s")), report(lambda task: Done(task, "so", USAGE))], "so"),
        ([report(lambda task: Failed(task, CapacityError("too long")))], CapacityError),
        ([report(lambda task: Done(task, ["no text"]))], StrettoError),
        ([lambda task: InstanceLost("llm", 0, EngineUnavailable("gone"))], EngineUnavailable),
        ([lambda task: Cancel("q"), report(lambda task: Done(task, "late"))], StrettoError),
    ],
)
def test_a_call_ends_as_a_session_of_the_same_graph(
    events: list[Callable[[int], Event]], ended: str | type[StrettoError]
) -> None:
    short = actions_of(CALL, inputs_of_call(PROMPT), events)
    general = actions_of(GENERAL, inputs_of_call(PROMPT), events)
    assert [str(action) for action in short] == [str(action) for action in general]
    (reply,) = [action for action in short if isinstance(action, Reply)]
    if isinstance(ended, str):
        assert (reply.outputs, reply.usage) == ({"answer": ended}, USAGE)
    else:
        assert isinstance(reply.error, ended)


@pytest.mark.parametrize("inputs", [{}, {"message0": "a", "message1": object()}])
def test_inputs_that_do_not_fit_end_it_in_the_same_way(inputs: Mapping[str, object]) -> None:
    short, general = actions_of(CALL, inputs, []), actions_of(GENERAL, inputs, [])
    assert [str(action) for action in short] == [str(action) for action in general]
    assert isinstance(short[-1], Reply)
    assert short[-1].error is not None


LIST = """
graph g(%x: text)
  %k = prefill([%x]) : kv @llm
  %a = decode(%k) {items="json_list", max_tokens=9} : list[text] @llm
  return %a
"""
TWO = """
graph g(%x: text)
  %k1 = prefill([%x]) : kv @llm
  %a1 = decode(%k1) {max_tokens=9} : text @llm
  %k2 = prefill([%a1]) : kv @llm
  %a2 = decode(%k2) {max_tokens=9} : text @llm
  return %a2
"""


@pytest.mark.parametrize("text", [LIST, TWO])
def test_other_graphs_are_no_single_call(text: str) -> None:
    assert not compile_graph(parse_graph(text.strip()), {}).is_one_call
