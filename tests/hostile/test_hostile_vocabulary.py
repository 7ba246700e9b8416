"""Parts of a vocabulary that raise, or return nonsense: the queries that use them end with an error that says
which part it was, and all others are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto import DEFAULT, Runtime
from stretto.graph.compile import compile_graph
from stretto.graph.graph import Graph
from stretto.graph.ops import Ops, OpSpec, Port
from stretto.graph.text import parse_graph
from stretto.model.deployment import deploy
from stretto.model.errors import GraphError, InternalError, StrettoError
from stretto.model.tasks import Task
from stretto.sched.observer import Observer
from stretto.sched.orders.arrival import PerInvocation
from stretto.sched.orders.order import Hold, Take
from stretto.sched.queries.request import QueueEntry
from stretto.sched.vocabulary import Vocabulary

PLAIN = compile_graph(
    parse_graph(
        "graph plain(%x: text)\n%kv = prefill([%x]) : kv @llm\n%y = decode(%kv) : text @llm\nreturn %y"
    ),
    {},
)


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: object, **__: object) -> Any:
        raise error

    return function


NONSENSE: Mapping[str, Callable[..., Any]] = {
    "raises": raises(ZeroDivisionError("mine")),
    "exits": raises(SystemExit(1)),
    "recursion": raises(RecursionError()),
    "is cancelled": raises(asyncio.CancelledError()),
    "none": lambda *_: None,
    "number": lambda *_: 3,
    "text": lambda *_: "text",
    "negative": lambda *_: -1,
    "huge": lambda *_: 10**400,
    "list": lambda *_: [None],
    "mapping": lambda *_: {"other": 1},
}


async def run_among_others(runtime: Runtime, graph: str | None, ops: Ops) -> object:
    """Run a query on a graph of text between plain ones; return its outputs or its error."""
    async with asyncio.timeout(60), runtime:
        before = [runtime.run(PLAIN, {"x": str(number)}) for number in range(3)]
        app = PLAIN if graph is None else compile_graph(parse_graph(graph, ops), {}, ops)
        hostile, *others = await asyncio.gather(runtime.run(app, {"x": "a"}), *before, return_exceptions=True)
        others.append(await runtime.run(PLAIN, {"x": "after"}))
        assert all(isinstance(other, Mapping) for other in others), others
        runtime.system.check_invariants()
        assert runtime.system.is_idle()
        return hostile


def runtime_of(vocabulary: Vocabulary, **settings: Any) -> Runtime:
    return Runtime(
        [
            deploy("mine", FakeBatch, FakeBatchConfig(), **settings),
            deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm"),
        ],
        vocabulary=vocabulary,
    )


def check_step(result: object) -> None:
    if not isinstance(result, Mapping):
        assert isinstance(result, StrettoError)
        assert result.step == "y"
        assert str(result)


@pytest.mark.parametrize("how", NONSENSE)
def test_an_op_that_is_evaluated_by_nonsense(how: str) -> None:
    spec = OpSpec("odd", (Port("x"),), "any", runs_on=None, evaluate=NONSENSE[how])
    vocabulary = DEFAULT.with_op(spec)
    graph = "graph g(%x: text)\n%y = odd(%x) : any\nreturn %y"
    result = asyncio.run(run_among_others(runtime_of(vocabulary), graph, vocabulary.ops))
    assert isinstance(result, StrettoError)
    check_step(result)


@pytest.mark.parametrize("how", NONSENSE)
@pytest.mark.parametrize("what", ["units", "tokens"])
def test_an_op_whose_work_is_measured_by_nonsense(what: str, how: str) -> None:
    spec = OpSpec("embed2", (Port("texts", "text"),), "any", **{what: NONSENSE[how]})  # type: ignore[arg-type]
    vocabulary = DEFAULT.with_op(spec)
    graph = "graph g(%x: text)\n%y = embed2(%x) : any @mine\nreturn %y"
    check_step(asyncio.run(run_among_others(runtime_of(vocabulary), graph, vocabulary.ops)))


@pytest.mark.parametrize("how", NONSENSE)
def test_an_expansion_that_makes_nonsense(how: str) -> None:
    vocabulary = DEFAULT.with_expansion("odd", NONSENSE[how])
    graph = 'graph g(%x: text)\n%y = expand(%x) {body="odd", result="any"} : any\nreturn %y'
    result = asyncio.run(run_among_others(runtime_of(vocabulary), graph, vocabulary.ops))
    assert isinstance(result, StrettoError)
    check_step(result)


@pytest.mark.parametrize("passes", ["all", "weighed", "odd"])
@pytest.mark.parametrize("how", [*NONSENSE, "empty graph", "graph of nothing"])
def test_a_pass_that_makes_nonsense_is_named(how: str, passes: str) -> None:
    made: Mapping[str, Callable[..., Any]] = {
        **NONSENSE,
        "empty graph": lambda *_: Graph("g", (), (), (), (("y", None),)),  # type: ignore[arg-type]
        "graph of nothing": lambda *_: Graph("g", (), (None,), (), ()),  # type: ignore[arg-type]
    }
    vocabulary = DEFAULT.with_pass("odd", made[how])

    async def main() -> None:
        async with runtime_of(vocabulary) as runtime, await runtime.open_session(passes=passes) as session:
            with pytest.raises(GraphError, match="odd"):
                session.extend(PLAIN.graph)
            await runtime.run(PLAIN, {"x": "after"})

    asyncio.run(main())


class Odd(PerInvocation):
    """An order that chooses nonsense where the op `odd` waits."""

    answer: Callable[..., Any] = staticmethod(lambda *_: None)

    def take(self, to_fill: int, fits: Any, now_s: float) -> Any:
        chosen = super().take(to_fill, fits, now_s)
        return type(self).answer(chosen)


CHOICES: Mapping[str, Callable[..., Any]] = {
    **NONSENSE,
    "for ever": lambda chosen: Hold(float("inf")),
    "never": lambda chosen: Hold(float("nan")),
    "what does not wait": lambda chosen: Take(QueueEntry(chosen.entry.request), 1),
    "too many": lambda chosen: Take(chosen.entry, 1000),
    "too few": lambda chosen: Take(chosen.entry, 0),
}


@pytest.mark.parametrize("how", CHOICES)
@pytest.mark.parametrize("engine", ["mine", "llm"])
def test_an_order_that_chooses_nonsense_ends_the_queries_of_its_engine(engine: str, how: str) -> None:
    order = type("Order", (Odd,), {"answer": staticmethod(CHOICES[how])})
    vocabulary = DEFAULT.with_policy("odd", order)
    graph = (
        "graph g(%x: text)\n%y = call(%x) : any @mine\nreturn %y"
        if engine == "mine"
        else "graph g(%x: text)\n%kv = prefill([%x]) : kv @other\n%y = decode(%kv) : text @other\nreturn %y"
    )
    runtime = Runtime(
        [
            deploy("mine", FakeBatch, FakeBatchConfig(), policy="odd"),
            deploy("other", FakeLLM, FakeLLMConfig(), contract="llm", policy="odd"),
            deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm"),
        ],
        vocabulary=vocabulary,
    )
    result = asyncio.run(run_among_others(runtime, graph, vocabulary.ops))
    assert isinstance(result, InternalError)


class WrongShapes:
    """A batch engine that answers nonsense."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer

    def run(self, tasks: tuple[Task, ...]) -> Any:
        return self._answer(tasks)

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("how", NONSENSE)
@pytest.mark.parametrize("each", [False, True])
def test_an_engine_that_answers_in_the_wrong_shape(each: bool, how: str) -> None:
    runtime = Runtime(
        [deploy("mine", WrongShapes, NONSENSE[how]), deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm")]
    )
    step = "%all = aggregate(%x) : list[text]\n%y = call(each %all) : list[any] @mine"
    graph = f"graph g(%x: text)\n{step if each else '%y = call(%x) : any @mine'}\nreturn %y"
    result = asyncio.run(run_among_others(runtime, graph, DEFAULT.ops))
    assert isinstance(result, StrettoError)
    check_step(result)


@pytest.mark.parametrize("how", ["raises", "exits", "is cancelled", "recursion"])
def test_an_observer_that_raises_anything_ends_nothing(how: str) -> None:
    class Watching(Observer):
        on_event = on_action = on_kv = on_steps = NONSENSE[how]

    runtime = runtime_of(DEFAULT)
    runtime.observers.add(Watching())
    assert isinstance(asyncio.run(run_among_others(runtime, None, DEFAULT.ops)), Mapping)
    assert len(runtime.observers.dropped) == 1


def test_an_action_that_cannot_be_carried_out_ends_its_own_query() -> None:
    """The last fence: here the loop that carries actions out is at fault."""

    async def main() -> None:
        runtime = runtime_of(DEFAULT)
        async with asyncio.timeout(60), runtime:
            assert runtime._pump is not None
            send = runtime._pump._instances.send
            broken = iter([True])

            def send_once_broken(*args: Any) -> None:
                if next(broken, False):
                    raise ZeroDivisionError("in the driver")
                send(*args)

            runtime._pump._instances.send = send_once_broken  # type: ignore[assignment, method-assign]
            with pytest.raises(StrettoError, match="ZeroDivisionError: in the driver"):
                await runtime.run(PLAIN, {"x": "a"})
            assert await runtime.run(PLAIN, {"x": "b"})

    asyncio.run(main())
