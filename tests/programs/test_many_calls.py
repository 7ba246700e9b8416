"""What many calls cost: fragments of a known form are not built again, and dropped calls leave nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

from support.programs import Desk, desk_llm
from support.virtual_loop import in_virtual_time

from stretto import Runtime
from stretto import programs as P
from stretto.graph.compile import compile_graph
from stretto.graph.text import parse_graph
from stretto.model.values import KV
from stretto.programs.connection import extend
from stretto.programs.fragment import MOST_PLACES, MOST_TOGETHER, Build, WaitingCall, parts_of
from stretto.programs.function import Function
from stretto.sched.actions import Action
from stretto.sched.messages import Event, Extend
from stretto.sched.queries.session import SessionMachine

CALL = compile_graph(
    parse_graph("""
        graph call(%x: any, %w: any)
          %kv = prefill([c"Tell: ", %x, %w]) : kv @llm
          %y  = decode(%kv) {max_tokens=9} : text @llm
          return %y
    """),
    {},
)


@P.SemanticFunction
def told(x: P.SemanticVariable) -> None:
    """Tell {{x}}: {{output:y}}"""


async def call(number: int) -> None:
    first = told(f"number {number}")
    second = told(P.join(first, "and more"))
    assert await second
    for variable in (first, second):
        variable.drop()


@in_virtual_time
async def test_fragments_of_a_known_form_are_not_built_again() -> None:
    num_built = 0
    make: Callable[[Build], None] = Build.__init__

    def counting(build: Build) -> None:
        nonlocal num_built
        num_built += 1
        make(build)

    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime:
        async with P.Client(runtime):
            await call(0)
        Build.__init__ = counting  # type: ignore[assignment, method-assign]
        try:
            async with P.Client(runtime):
                for number in range(5):
                    await call(number)
        finally:
            Build.__init__ = make  # type: ignore[assignment, method-assign]
    assert num_built == 0


def chained(num: int) -> list[WaitingCall]:
    """Calls, each of which reads what the one before makes; the last one first."""
    work = Function.of_prompt("go_on", "{{input:x}}+{{output:y}}", {"x": None}, {})
    calls = [WaitingCall(work, {"x": f"v{i}"}, {"y": f"v{i + 1}"}, {}) for i in range(num)]
    return calls[::-1]


def test_parts_of_many_calls_have_producers_first() -> None:
    calls = chained(2 * MOST_TOGETHER + 1)
    parts = list(parts_of(calls))
    assert [len(part) for part in parts] == [MOST_TOGETHER, MOST_TOGETHER, 1]
    assert [call for part in parts for call in part] == calls[::-1]


def test_calls_of_many_inputs_are_in_small_parts() -> None:
    """One call may have more by itself; then it is a part."""
    work = chained(1)[0].work
    inputs = {f"x{i}": f"v{i}" for i in range(900)}
    calls = [WaitingCall(work, inputs, {"y": f"y{i}"}, {}) for i in range(20)]
    parts = list(parts_of(calls))
    assert [call for part in parts for call in part] == calls
    assert [len(part) for part in parts] == [MOST_PLACES // 901] * 10
    large = WaitingCall(work, {f"x{i}": f"v{i}" for i in range(2 * MOST_PLACES)}, {"y": "y"}, {})
    assert [list(part) for part in parts_of([calls[0], large, calls[1]])] == [[calls[0]], [large], [calls[1]]]


def test_calls_in_a_circle_are_in_one_of_the_parts_each() -> None:
    calls = chained(MOST_TOGETHER + 1)
    circle = [*calls, WaitingCall(calls[0].work, {"x": f"v{len(calls)}"}, {"y": "v0"}, {})]
    found = [call for part in parts_of(circle) for call in part]
    assert sorted(map(id, found)) == sorted(map(id, circle))


@in_virtual_time
async def test_many_calls_are_added_in_several_turns_and_all_answered() -> None:
    num_nodes: list[int] = []
    desk = Desk(lambda prompt: "." * prompt.count("."))
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime:
        handle = runtime.system.handle

        def noting(events: Sequence[Event], now_s: float) -> list[Action]:
            num_nodes.append(sum(len(one.egraph.nodes) for one in events if isinstance(one, Extend)))
            return handle(events, now_s)

        runtime.system.handle = noting  # type: ignore[method-assign]
        async with await runtime.open_session() as session:
            extend(runtime, session, chained(3 * MOST_TOGETHER), lambda name: False)
            session.provide("v0", ".")
            assert await session.get(f"v{3 * MOST_TOGETHER}") == "."
    assert len(desk.prompts) == 3 * MOST_TOGETHER
    assert [num for num in num_nodes if num] == 3 * [2 * MOST_TOGETHER]


def test_calls_that_are_dropped_leave_nothing_in_their_session() -> None:
    session = SessionMachine("q")
    session.provide("x", "a text")
    for _ in range(100):
        run_one(session)
    before = num_objects()
    for _ in range(5_000):
        run_one(session)
    assert num_objects() < before + 100


def run_one(session: SessionMachine) -> None:
    outcome = session.extend(CALL, {}, {"w": "a value"})
    session.want("y")
    (request,) = outcome.work
    outcome = session.complete(request.node.id, 0, [(KV(request.prompts[0]), "said")])
    assert outcome.settled == [("y", "said")]
    session.drop("y")


def num_objects() -> int:
    gc.collect()
    return len(gc.get_objects())
