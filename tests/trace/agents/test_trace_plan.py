"""The description of a trace, its checks, and the plan of its replay."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from stretto.model.errors import InternalError
from stretto.trace.agents.plan import AgentPlan
from stretto.trace.agents.requests import (
    After,
    AgentRequest,
    AgentTrace,
    ChatPrompt,
    SizedPrompt,
    checked_trace,
)
from stretto.trace.lines import TraceError

PATH = Path("trace.jsonl")


def request(name: str, *after: After, arrival_s: float = 0.0, line: int = 1) -> AgentRequest:
    return AgentRequest(name, line, SizedPrompt(10), arrival_s, after, 5)


def trace(*requests: AgentRequest) -> AgentTrace:
    return checked_trace(PATH, requests)


def started(plan: AgentPlan, now_s: float) -> list[str]:
    names = [request.id for request in plan.start_due(now_s)]
    plan.check_invariants()
    return names


def test_a_request_is_due_when_its_last_condition_is_met() -> None:
    plan = AgentPlan(
        trace(
            request("a", arrival_s=1.0),
            request("b", arrival_s=1.0),
            request("join", After("a", 0.5), After("b", 2.0), arrival_s=0.25),
            request("late", After("a"), arrival_s=9.0),
        )
    )
    assert plan.next_s == 1.0
    assert started(plan, 0.99) == []
    assert started(plan, 1.0) == ["a", "b"]
    assert plan.next_s is None
    plan.end("b", 3.0)
    assert plan.next_s is None
    plan.end("a", 4.0)
    assert plan.next_s == 5.0  # b ended at 3 and needs 2 s more; a at 4 and 0.5
    assert started(plan, 5.0) == ["join"]
    assert plan.next_s == 9.0
    assert started(plan, 9.5) == ["late"]
    assert plan.due_s("late") == 9.0
    plan.end("join", 9.75)
    assert not plan.is_over
    plan.end("late", 10.0)
    assert plan.is_over
    plan.check_invariants()


def test_a_condition_on_a_start_does_not_wait_for_the_end() -> None:
    plan = AgentPlan(
        trace(
            request("parent"),
            request("child", After("parent", 0.0, "start")),
            request("later", After("parent", 2.0, "start")),
        )
    )
    assert started(plan, 0.0) == ["parent", "child"]
    assert plan.next_s == 2.0
    assert plan.fail("parent") == []  # both had begun to count before
    assert started(plan, 2.0) == ["later"]


def test_a_failure_drops_all_that_wait_for_it_and_nothing_else() -> None:
    plan = AgentPlan(
        trace(
            request("a"),
            request("b", After("a")),
            request("c", After("b")),
            request("d", After("b", 0.0, "start"), After("other")),
            request("other"),
        )
    )
    assert started(plan, 0.0) == ["a", "other"]
    assert plan.fail("a") == ["b", "c", "d"]
    plan.end("other", 1.0)
    assert plan.is_over
    assert plan.next_s is None
    plan.check_invariants()


def test_an_end_that_cannot_be_is_refused() -> None:
    plan = AgentPlan(trace(request("a")))
    with pytest.raises(InternalError, match="'a' is due, it cannot have ended"):
        plan.end("a", 0.0)
    started(plan, 0.0)
    plan.end("a", 1.0)
    with pytest.raises(InternalError, match="'a' is ended, it cannot have failed"):
        plan.fail("a")


@pytest.mark.parametrize("seed", range(40))
def test_every_random_trace_comes_to_its_end(seed: int) -> None:
    draw = Random(seed)
    requests = []
    for number in range(30):
        others = draw.sample(range(number), min(number, draw.choice((0, 1, 1, 2, 3))))
        waits = [After(f"r{n}", draw.random(), draw.choice(("start", "end", "end"))) for n in others]
        requests.append(request(f"r{number}", *waits, arrival_s=draw.choice((0.0, draw.random()))))
    draw.shuffle(requests)
    plan, now_s, running, starts = AgentPlan(trace(*requests)), 0.0, [], {}
    ends: dict[str, float] = {}
    while not plan.is_over:
        for name in started(plan, now_s):
            running.append(name)
            starts[name] = now_s
        if plan.next_s is not None and (not running or draw.random() < 0.5):
            now_s = max(now_s, plan.next_s)
        elif running:
            name = running.pop(draw.randrange(len(running)))
            if draw.random() < 0.1:
                plan.fail(name)
            else:
                ends[name] = now_s
                plan.end(name, now_s)
        plan.check_invariants()
    for one in requests:
        for after in one.after if one.id in starts else ():
            assert (
                starts[one.id] >= (starts if after.event == "start" else ends)[after.request] + after.delay_s
            )


def test_requests_that_wait_for_each_other_are_one_job() -> None:
    found = trace(
        request("x"),
        request("a"),
        request("b", After("a")),
        request("c", After("b"), After("d")),
        request("d"),
    )
    assert found.jobs == {"x": "x", "a": "a", "b": "a", "c": "a", "d": "a"}


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([], r"trace\.jsonl: there are no requests"),
        (
            [request("a", line=3), request("a", line=7)],
            r"trace\.jsonl, line 7, request 'a': the id is used twice, first in line 3",
        ),
        ([request("a", After("b"), line=2)], r"line 2, request 'a': it waits for 'b', which is no request"),
        ([request("b"), request("a", After("b", -1.0))], r"request 'a': its time for 'b' is -1.0 s"),
        ([request("a", arrival_s=float("nan"))], r"request 'a': its time for 'arrival' is nan s"),
        ([request("a", After("a"))], r"requests wait in a circle: a after a"),
        (
            [request("x", After("a")), request("a", After("c"), line=4), request("c", After("a"))],
            r"line 4, request 'a': requests wait in a circle: a after c after a",
        ),
        (
            [request("a"), AgentRequest("b", 5, ChatPrompt((), "a"))],
            r"line 5, request 'b': it continues 'a' without waiting for its end",
        ),
    ],
)
def test_a_bad_trace_names_file_line_and_request(requests: list[AgentRequest], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        trace(*requests)
