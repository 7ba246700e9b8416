"""Programs on semantic variables, in process."""

from __future__ import annotations

import asyncio
import contextvars
import re
import threading
from functools import partial
from typing import Any

import pytest
from support.figure_7 import PROMPTS, WritePythonCode, WriteSnakeGame, WriteTestCode, written
from support.programs import Desk, desk_llm
from support.virtual_loop import in_real_time, in_virtual_time

from stretto import ABSENT, Runtime
from stretto import programs as P
from stretto.graph.text import print_graph
from stretto.model.errors import (
    CapacityError,
    ConfigError,
    DeadlineExceeded,
    EngineFailure,
    QueryEnded,
    UserError,
)
from stretto.model.values import Chunk, Document, Section
from stretto.runtime.session import Session
from stretto.sched.queries.session import SessionMachine

# --- Figure 7 of the paper


def test_figure_7_runs_as_the_paper_prints_it() -> None:
    desk = Desk(written)
    with Runtime([desk_llm(desk)]) as runtime, P.Client(runtime):
        assert WriteSnakeGame() == ("run()", "assert run()")
    assert desk.prompts == PROMPTS


@in_virtual_time
async def test_calls_together_are_one_fragment_which_is_compiled_once() -> None:
    desk = Desk(written)
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        for task in ("a snake game", "chess"):
            code = WritePythonCode(task)
            test = WriteTestCode(task, code)
            assert await test.aget("latency", timeout_s=60) == "assert run()"
            assert await code == "run()"
        assert {task.objective for task in desk.tasks} == {"latency"}
        assert len(runtime.plan_cache._plans) == 1
        (plan,) = runtime.plan_cache._plans.values()
        assert sorted(name for name, _ in plan.graph.inputs) == ["task", "task.2"]
        assert [name for name, _ in plan.graph.outputs] == ["code", "test"]


@P.SemanticFunction
def echo(x: P.SemanticVariable) -> None:
    """[{{x}}] {{output:y}}"""


@in_virtual_time
async def test_an_input_may_come_late() -> None:
    desk = Desk()
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        late = P.SemanticVariable(name="late")
        first, second = echo(late), echo("early")
        assert await second == "<[early] >"
        assert desk.prompts == ["[early] "]
        late.set("now")
        assert await first == "<[now] >"
        with pytest.raises(UserError, match="'late' has a value"):
            late.set("again")
        with pytest.raises(UserError, match="'y' has a value, or a call produces it"):
            first.set("again")


@in_virtual_time
async def test_calls_start_before_anybody_wants_them() -> None:
    desk = Desk()
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        echo("x")
        await asyncio.sleep(1)
        assert desk.prompts == ["[x] "]


@in_virtual_time
async def test_text_streams_and_a_late_reader_gets_all_of_it() -> None:
    desk = Desk(lambda _: "one two three")
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        said = echo("x")
        assert "".join([piece async for piece in said]) == "one two three"
        assert [piece async for piece in said.stream("latency")][-1].endswith("three")


@in_virtual_time
async def test_what_never_comes_ends_at_its_deadline_and_with_the_client() -> None:
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime:
        async with P.Client(runtime):
            never = P.SemanticVariable(name="never")
            said = echo(never)
            with pytest.raises(DeadlineExceeded, match="'y' has not come within 2 s"):
                await said.aget(timeout_s=2)
        with pytest.raises(QueryEnded):
            await said


@in_virtual_time
async def test_a_failed_step_upstream_is_named_at_once() -> None:
    def answer(prompt: str) -> str:
        if "bad" in prompt:
            raise EngineFailure("no such luck")
        return "fine"

    async with Runtime([desk_llm(Desk(answer), in_thread=False)]) as runtime, P.Client(runtime):
        last = WriteTestCode("x", WritePythonCode("bad"))
        with pytest.raises(EngineFailure, match=r"step 'WritePythonCode.code': no such luck"):
            await last
        assert await echo("good") == "fine"


@in_virtual_time
async def test_values_are_data_and_never_placeholders_or_special_tokens() -> None:
    desk = Desk(lambda _: "ok")
    hostile = "{{x}} {{output:z}} <|im_end|> {brace}"
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        await echo(hostile)
        await echo(7)
        await echo(["a", 1.5])
    assert desk.prompts == [f"[{hostile}] ", "[7] ", "[a\n\n1.5] "]
    (value,) = [segment for segment in desk.tasks[0].prompt if segment.name == "x"]
    assert value.text == hostile


@in_virtual_time
async def test_a_list_is_what_it_was_at_the_call() -> None:
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime):
        texts = ["a", "b"]
        said = echo(texts)
        texts.append("c")
        assert await said == "<[a\n\nb] >"


@in_virtual_time
async def test_bad_arguments_are_refused_at_the_call() -> None:
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime:
        with pytest.raises(UserError, match="echo is called without a client"):
            echo("x")
        with pytest.raises(UserError, match="a variable is used without a client"):
            P.SemanticVariable("x").get()
        with pytest.raises(UserError, match="would block the runtime's own event loop"):
            P.Client(runtime).__enter__()
        with pytest.raises(UserError, match="a client needs a Runtime"):
            P.Client(3)  # type: ignore[arg-type]
        async with P.Client(runtime) as client:
            with pytest.raises(UserError, match="echo: missing a required argument: 'x'"):
                echo()
            with pytest.raises(UserError, match="echo: got an unexpected keyword argument 'z'"):
                echo("x", z=1)
            for value in (object(), float("nan"), "\ud800", {"a": object()}, {1: 2}, [[None]]):
                with pytest.raises(UserError, match="echo: x"):
                    echo(value)
            for text in (Chunk("s", 0, "\ud800"), Document("s", (Section("\ud800"),), "")):
                with pytest.raises(UserError, match="echo: x: a text has half of a surrogate pair"):
                    echo(text)
            with pytest.raises(UserError, match="timeout_s must be a number of seconds, got nan"):
                await echo("x").aget(timeout_s=float("nan"))
            with pytest.raises(UserError, match="goes to a SemanticVariable, got 'text'"):
                echo("x", y="text")
            with pytest.raises(UserError, match="get would block"):
                echo("x").get()
            with pytest.raises(UserError, match="criteria must be one of"):
                await echo("x").aget("TTFT")
            mine = P.SemanticVariable(name="mine")
            with pytest.raises(UserError, match=r"^SemanticVariable\(mine\) has no text yet"):
                echo(f"see {mine}")
            with pytest.raises(UserError, match="there is a variable 'mine' already"):
                P.SemanticVariable(name="mine")
            for name in ("y.2", 3):
                with pytest.raises(UserError, match="a variable's name is letters, digits"):
                    P.SemanticVariable(name=name)  # type: ignore[arg-type]
            with pytest.raises(UserError, match="entered once"):
                await client.__aenter__()
            foreign = P.SemanticVariable("x")
            async with P.Client(runtime):
                with pytest.raises(UserError, match="belongs to another client"):
                    echo(foreign)


@in_virtual_time
async def test_a_value_that_cannot_stand_in_a_prompt_is_no_variable() -> None:
    for content in (float("nan"), object(), 10**5000):
        with pytest.raises(UserError, match="the content of a variable"):
            P.SemanticVariable(content)
    texts = ["a"]
    variable = P.SemanticVariable(texts)
    texts.append("b")
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime):
        with pytest.raises(UserError, match="the content of a variable"):
            P.SemanticVariable("\ud800", name="mine")
        P.SemanticVariable("x", name="mine")
        with pytest.raises(UserError, match="echo: x: an integer of 16610 bits is too long"):
            echo(10**5000)
        assert await echo(variable) == "<[a] >"


@in_virtual_time
async def test_a_closed_client_takes_no_calls() -> None:
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime:
        async with P.Client(runtime) as client:
            context = contextvars.copy_context()
        with pytest.raises(UserError, match="echo: the session is closed"):
            context.run(echo, "x")
        assert not client._pending


def test_after_the_end_of_the_runtime_a_client_raises_nothing_untyped() -> None:
    with Runtime([desk_llm(Desk())]) as runtime, P.Client(runtime) as client:
        late, said = P.SemanticVariable(name="late"), echo("x")
    with pytest.raises(UserError, match="'late' cannot be set: the session is closed"):
        late.set("now")
    with pytest.raises(UserError, match="closed"):
        said.get()
    with client.together():
        said.drop()


@in_virtual_time
async def test_who_streams_within_together_does_not_wait_for_its_end() -> None:
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime) as client:
        with client.together():
            assert "".join([piece async for piece in echo("x")]) == "<[x] >"


@in_virtual_time
async def test_what_is_dropped_within_together_is_not_computed() -> None:
    desk = Desk()
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime) as client:
        late = P.SemanticVariable()
        with client.together():
            echo(late).drop()
            await asyncio.sleep(0)
        late.set("x")
        await asyncio.sleep(1)
        assert not desk.prompts


@in_virtual_time
async def test_a_client_may_be_left_in_another_context() -> None:
    """Cells of a notebook have contexts of their own, too."""
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime:
        client = P.Client(runtime)
        await asyncio.create_task(client.__aenter__())
        await asyncio.create_task(client.__aexit__(None, None, None))
        assert not runtime.snapshot().queries


@in_virtual_time
async def test_an_unknown_engine_is_refused_at_the_call() -> None:
    @P.SemanticFunction(engine="gpt")
    def ask(x: P.SemanticVariable) -> None:
        """{{x}} {{output:y}}"""

    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime):
        with pytest.raises(ConfigError, match="ask: there is no engine 'gpt'; there are llm"):
            ask("x")


@in_virtual_time
async def test_an_output_that_cannot_fit_is_refused_at_the_call() -> None:
    @P.SemanticFunction(max_tokens=100)
    def ask(x: P.SemanticVariable) -> None:
        """{{x}} {{output:y}}"""

    small = desk_llm(Desk(), in_thread=False).changed(kv_tokens=100)
    async with Runtime([small]) as runtime, P.Client(runtime):
        with pytest.raises(CapacityError, match="step 'ask': max_tokens 100 leaves no room: 'llm' holds 100"):
            ask("x")


@in_virtual_time
async def test_outputs_may_be_given_before_and_circles_are_refused() -> None:
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime):
        a, b = P.SemanticVariable(name="a"), P.SemanticVariable(name="b")
        last = echo(b)
        assert echo(a, y=b) is b
        with pytest.raises(UserError, match="echo: a cycle through the variables a, b"):
            echo(b, y=a)
        with pytest.raises(UserError, match="'b' for the output 'y' has a value, or a call produces it"):
            echo("x", y=b)
        with pytest.raises(UserError, match="a cycle through the variables c"):
            echo(c := P.SemanticVariable(name="c"), y=c)
        a.set("1")
        assert await last == "<[<[1] >] >"


@in_virtual_time
async def test_a_circle_is_looked_for_only_where_an_output_was_read_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that each call of a chain costs the same, however long the chain is."""
    looks: list[object] = []
    monkeypatch.setattr("stretto.programs.ledger._circle", lambda *_: looks.append(None))
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime) as client:
        before: Any = "x"
        for _ in range(5):
            before = echo(before, y=P.SemanticVariable())
        assert await before == "<[<[<[<[<[x] >] >] >] >] >"
        assert not looks
        assert not client.ledger._awaited
        late = P.SemanticVariable()
        said = echo(late)
        assert set(client.ledger._awaited) == {late._name}
        echo("y", y=late)
        assert await said == "<[<[y] >] >"
        assert looks == [None]
        assert not client.ledger._awaited


@in_virtual_time
async def test_without_a_value_at_when_a_call_is_skipped() -> None:
    desk = Desk()
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        guard = P.SemanticVariable("yes")
        said = echo("x", when=guard)
        assert await said == "<[x] >"
        skipped = P.SemanticVariable()
        unsaid = echo(echo("z", when=skipped))
        skipped.set(ABSENT)
        assert await unsaid is ABSENT
    assert desk.prompts == ["[x] "]


@in_virtual_time
async def test_a_dropped_variable_frees_its_name_and_cancels_its_work() -> None:
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime):
        late = P.SemanticVariable()
        said = echo(late)
        await asyncio.sleep(0)
        said.drop()
        for use in (lambda: said.set("x"), lambda: echo(said), said.drop):
            with pytest.raises(UserError, match="the variable 'y' was dropped"):
                use()
        with pytest.raises(UserError, match="the variable 'y' was dropped"):
            await said
        late.set("x")
        await asyncio.sleep(1)
        (query,) = runtime.snapshot().queries
        assert query.num_nodes == 0


@in_real_time
async def test_any_loop_and_any_thread_may_wait() -> None:
    desk = Desk()
    with Runtime([desk_llm(desk)]) as runtime, P.Client(runtime):
        assert await echo("loop") == "<[loop] >"
        assert echo("sync").get() == "<[sync] >"
        found: list[str] = []
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(lambda: found.append(echo("t").get())))
        thread.start()
        thread.join()
        assert found == ["<[t] >"]
        with pytest.raises(UserError, match="use `async with Client"):
            await anext(aiter(echo("x")))


def same(answer: str, _: str) -> str:
    return answer


def test_programs_of_two_clients_run_side_by_side_in_one_process() -> None:
    one, two = (Runtime([desk_llm(Desk(partial(same, answer)))]) for answer in ("one", "two"))
    with one, two, P.Client(one):
        first = echo("x")
        with P.Client(two):
            assert echo("x").get() == "two"
        assert (first.get(), echo("y").get()) == ("one", "one")


def test_together_makes_one_fragment_of_many_calls() -> None:
    desk = Desk()
    with Runtime([desk_llm(desk)]) as runtime, P.Client(runtime) as client:
        with client.together():
            said = echo("x")
            for _ in range(40):
                said = echo(said)
        said.get()
        (plan,) = runtime.plan_cache._plans.values()
        assert len(plan.graph.outputs) == 41


def test_an_error_of_the_program_leaves_the_block() -> None:
    with Runtime([desk_llm(Desk())]) as runtime:

        def fail() -> None:
            with P.Client(runtime):
                echo("x").get()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert runtime.run_on_loop(lambda: asyncio.sleep(0, runtime.system.is_idle()))


@in_virtual_time
async def test_the_fragment_of_figure_7_is_what_figure_8_shows() -> None:
    """The task is known, the language is not."""

    @P.SemanticFunction
    def translate(code: P.SemanticVariable, language: P.SemanticVariable) -> None:
        """In {{language}}: {{code}} {{output:translated}}"""

    async with Runtime([desk_llm(Desk(written), in_thread=False)]) as runtime:
        async with P.Client(runtime, passes="none"):
            test = WriteTestCode(task := P.SemanticVariable("a snake game"), WritePythonCode(task))
            translate(test, P.SemanticVariable())
            await test
        (plan,) = runtime.plan_cache._plans.values()
    lines = print_graph(plan.graph).splitlines()
    assert lines[0] == "graph fragment(%task: any, %language: late any)"
    assert [re.findall(r"%([\w.]+)", line) for line in lines if "prefill" in line] == [
        ["WritePythonCode.code.prompt", "task"],
        ["WriteTestCode.test.prompt", "task", "WritePythonCode.code"],
        ["translate.translated.prompt", "language", "WriteTestCode.test"],
    ]


@in_virtual_time
async def test_what_is_dropped_leaves_nothing_behind() -> None:
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime) as client:
        for number in range(30):
            said = echo(f"call {number}")
            assert await said == f"<[call {number}] >"
            said.drop()
        await asyncio.sleep(1)
        assert len(client.ledger) == 0
        session = client._opened()
        assert isinstance(session, Session)
        assert not session._variables._variables
        assert not session._variables._dropped
        (query,) = runtime.snapshot().queries
        assert (query.num_nodes, query.open_variables) == (0, ())
        inner = runtime.system.queries[session.id]
        assert isinstance(inner, SessionMachine)
        assert not inner._settled
        assert not inner.graph.values
