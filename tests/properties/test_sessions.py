"""However a program is cut into graphs, and whenever variables are set, wanted, read and dropped: a session
gives what one graph gives.

Set STRETTO_EXAMPLES to run more examples than a normal run does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fragments import Fragmented, comparable, failing_steps, fragmented
from support.graph_oracle import fails, interpret, nonsense
from support.random_apps import apps, expander
from support.runtime_engines import on_the_loop
from support.virtual_loop import VirtualLoop
from support.work_by_hand import WorkByHand
from support.worlds import World, assert_nothing_is_left, worlds

from stretto import Runtime
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.passes.pipeline import PASSES
from stretto.model.errors import QueryCancelled, StrettoError
from stretto.model.tasks import LLMTask, Task
from stretto.model.values import Failure
from stretto.runtime.session import Session as RunningSession
from stretto.sched.messages import Close, Drop, Extend, Open, Provide, SessionEvent, Unwant, Want
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.session import SessionMachine

NUM_EXAMPLES = int(os.environ.get("STRETTO_EXAMPLES", "16"))
moderately = settings(
    max_examples=NUM_EXAMPLES,
    derandomize="STRETTO_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Plan:
    """A program in fragments, which steps of it fail, and what its caller does, in order."""

    program: Fragmented
    failing: frozenset[str]
    passes: tuple[str, ...]
    events: tuple[SessionEvent, ...]
    dropped: frozenset[str]

    def expected(self) -> dict[str, object]:
        """Return the variables that one graph gives."""
        return interpret(self.program.whole, self.program.inputs, self.failing)

    def check(self, settled: Mapping[str, object]) -> None:
        """Every variable is what it should be; a dropped one may have been cancelled instead."""
        for name, value in self.expected().items():
            assert name in settled, name
            found = settled[name]
            is_cancelled = isinstance(found, Failure) and isinstance(found.error, QueryCancelled)
            assert (is_cancelled and name in self.dropped) or comparable(found) == comparable(value), name


@st.composite
def plans(draw: Draw) -> Plan:
    app = draw(apps())
    program = fragmented(app, draw(st.lists(st.integers(1, 6), max_size=8)))
    failing = (
        draw(st.frozensets(st.sampled_from(failing_steps(app)), max_size=2)) if failing_steps(app) else ()
    )
    passes = draw(st.sampled_from(((), tuple(PASSES))))
    graphs = program.compile({}, passes)
    names = [*program.variables, *program.inputs]
    criteria = st.sampled_from((None, "latency", "throughput"))
    deadlines_s = st.sampled_from((None, None, 0.1, 5.0))
    wanted = draw(st.lists(st.tuples(st.sampled_from(names), criteria, deadlines_s), max_size=5))
    left = [want for want in wanted if draw(st.booleans())]
    events: list[SessionEvent] = [
        *(Provide("q", name, value) for name, value in program.inputs.items()),
        *(Extend("q", graph) for graph in graphs),
        *(Want("q", *want) for want in wanted),
    ]
    events = draw(st.permutations(events))
    dropped = draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
    last: list[SessionEvent] = [
        *(Unwant("q", *want) for want in left),
        *(Drop("q", name) for name in dropped),
    ]
    events += draw(st.permutations(last))
    return Plan(program, frozenset(failing), passes, tuple(events), frozenset(dropped))


def apply(session: SessionMachine, event: SessionEvent) -> Outcome:
    match event:
        case Extend(_, graph, bind):
            return session.extend(graph, bind)
        case Provide(_, name, value):
            return session.provide(name, value)
        case Want(_, name, criteria, deadline_s):
            return session.want(name, criteria, deadline_s)
        case Unwant(_, name, criteria, deadline_s):
            return session.unwant(name, criteria, deadline_s)
        case Drop(_, name):
            return session.drop(name)
    raise AssertionError(event)


@given(plans(), st.data())
@moderately
def test_the_machine_alone_gives_what_one_graph_gives(plan: Plan, data: st.DataObject) -> None:
    """The scheduler alone, with its work done by hand in any order, gives what one graph gives."""
    expand = expander({})
    session = SessionMachine("q", None, lambda body, inputs: expand(body, inputs, plan.passes))
    by_hand = WorkByHand(plan.failing)
    settled: dict[str, object] = {}

    def take(outcome: Outcome) -> None:
        session.check_invariants()
        by_hand.take(outcome)
        for name, value in outcome.settled:
            assert name not in settled, name
            settled[name] = value
        if outcome.is_paused:
            take(session.go_on())

    events = list(plan.events)
    while events or by_hand.waiting:
        if events and (not by_hand.waiting or data.draw(st.booleans())):
            take(apply(session, events.pop(0)))
        else:
            take(session.complete(*by_hand.do(data.draw(st.integers(0, 99)))))
    plan.check(settled)
    assert not session.graph.nodes
    assert len(session.graph.values) == len(session._variables)


@given(plans(), worlds(), st.data())
@moderately
def test_in_virtual_time_a_session_gives_what_one_graph_gives(
    plan: Plan, world: World, data: st.DataObject
) -> None:
    driver = world.driver(fail_in(plan.failing))
    driver.send(Open("q", passes=plan.passes))
    at_s = 0.0
    for event in plan.events:
        driver.send(event, at_s)
        at_s += data.draw(st.sampled_from((0.0, 0.001, 0.05, 0.3)))
    driver.run()
    plan.check({name: value for (_, name), value in driver.settled.items()})
    assert "q" not in driver.replies
    driver.send(Close("q"), driver.now_s)
    reply = driver.run()["q"]
    assert (reply.outputs, reply.error) == ({}, None)
    assert_nothing_is_left(driver)


@given(plans(), worlds())
@moderately
def test_a_one_shot_query_fails_with_what_one_graph_fails_with(plan: Plan, world: World) -> None:
    """A one-shot query raises the first failed output, or none."""
    graph: ExecutionGraph = compile_graph(plan.program.whole, {})
    driver = world.driver(fail_in(plan.failing))
    driver.submit("q", graph, plan.program.inputs)
    reply = driver.run()["q"]
    expected = plan.expected()
    if reply.error is None:
        assert reply.outputs == expected
    else:
        assert str(reply.error) in {str(nonsense(step)) for step in plan.failing}
        assert any("nonsense" in str(comparable(value)) for value in expected.values())
    assert_nothing_is_left(driver)


@given(plans(), worlds(), st.data())
@settings(moderately, max_examples=NUM_EXAMPLES // 4)
def test_in_a_runtime_a_session_gives_what_one_graph_gives(
    plan: Plan, world: World, data: st.DataObject
) -> None:
    setups = {**world.setups, "vectors": replace(world.setups["vectors"], instances=1)}  # it keeps state
    world = replace(world, setups=setups, losses=())

    async def run() -> dict[str, object]:
        engines = [on_the_loop(engine) for engine in world.engines(fail_in(plan.failing))]
        async with Runtime(engines) as runtime:
            runtime.system._expand = expander(world.profiles)
            async with await runtime.open_session(passes=plan.passes) as session:
                asked = {name: asyncio.create_task(ask(session, name)) for name in plan.program.variables}
                await asyncio.sleep(0)  # who asks after it was dropped would wait for another of that name
                for event in plan.events:
                    tell(session, event)
                    if data.draw(st.booleans()):
                        await asyncio.sleep(data.draw(st.sampled_from((0.0, 0.01))))
                    runtime.system.check_invariants()
                settled = {name: await answer for name, answer in asked.items()}
            assert runtime.system.is_idle()
            return settled

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        plan.check(runner.run(run()))


async def ask(session: RunningSession, name: str) -> object:
    try:
        return await session.get(name)
    except StrettoError as error:
        return Failure(error)


def tell(session: RunningSession, event: SessionEvent) -> None:
    match event:
        case Extend(_, graph):
            session.extend(graph)
        case Provide(_, name, value):
            session.provide(name, value)
        case Want(_, name, criteria):
            session.want(name, criteria)
        case Drop(_, name):
            session.drop(name)


def fail_in(failing: frozenset[str]) -> Callable[[Task | LLMTask], BaseException | None]:
    """A batch fails as a whole if one of its items does: the schedulers find out which."""

    def fail_on(task: Task | LLMTask) -> BaseException | None:
        if isinstance(task, LLMTask):
            is_bad = task.decode is not None and fails(failing, task.step, task.prompt)
        else:
            is_bad = any(fails(failing, task.step, row) for row in rows(task))
        return nonsense(task.step) if is_bad else None

    return fail_on


def rows(task: Task) -> list[dict[str, Any]]:
    """The inputs of each item of a task."""
    inputs: dict[str, Any] = dict(task.inputs)
    if task.num_items is None:
        return [inputs]
    return [{**inputs, **{port: inputs[port][i] for port in task.each}} for i in range(task.num_items)]
