"""The engine of an agent's tools: whatever a tool does, each call of a turn has a result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stretto.components import Tool, ToolResult, tool
from stretto.engines.batch.tools import Tools, ToolsConfig
from stretto.engines.catalogue import tools_engine
from stretto.model.tasks import Task


@contextmanager
def engine(*tools: Tool, max_chars: int = 100) -> Iterator[Tools]:
    made = Tools(ToolsConfig(tools, max_chars))
    try:
        yield made
    finally:
        made.close()


def turn(tools: Tools, *calls: str) -> list[ToolResult]:
    (results,) = tools.run([Task(1, "q", "results", "call", {"calls": list(calls)}, {"turn": 1})])
    assert isinstance(results, list)
    assert all(isinstance(one, ToolResult) for one in results)
    return results


def test_a_result_that_is_too_long_is_cut_and_says_so() -> None:
    with engine(Tool("huge", "is huge", lambda given: "x" * 1_000_000)) as tools:
        (result,) = turn(tools, "huge: now")
    assert result.text == "x" * 100 + "\n[Cut: these are the first 100 of 1000000 characters.]"


@pytest.mark.parametrize(("effects", "outcome"), [(False, "timed_out"), (True, "in_doubt")])
def test_a_tool_that_hangs_is_given_up(*, effects: bool, outcome: str) -> None:
    release = threading.Event()

    def wait(given: str) -> None:
        release.wait(600)

    async def wait_too(given: str) -> None:
        await asyncio.Event().wait()

    with engine(
        Tool("hang", "hangs", wait, effects=effects, timeout_s=0.05),
        Tool("wait", "waits", wait_too, effects=effects, timeout_s=0.05),
    ) as tools:
        results = turn(tools, "hang: now", "wait: now")
    release.set()
    assert [result.outcome for result in results] == [outcome, outcome]
    assert all("longer than 0.05 s" in result.text for result in results)


def test_a_coroutine_that_blocks_its_loop_holds_up_no_other_one() -> None:
    release = threading.Event()

    async def block(given: str) -> None:
        release.wait(600)

    async def greet(given: str) -> str:
        return f"Hello {given}"

    with engine(Tool("block", "blocks", block, timeout_s=0.05), Tool("greet", "greets", greet)) as tools:
        assert turn(tools, "block: now")[0].outcome == "timed_out"
        assert turn(tools, "greet: Ann")[0].text == "Hello Ann"
    release.set()


def test_an_error_of_time_that_a_tool_raises_is_a_failure_like_others() -> None:
    def late(given: str) -> None:
        raise TimeoutError("the site did not answer")

    with engine(Tool("late", "is late", late)) as tools:
        (result,) = turn(tools, "late: now")
    assert (result.outcome, result.text) == ("failed", "This failed: TimeoutError: the site did not answer")


@pytest.mark.parametrize("error", [SystemExit(1), StopIteration(), MemoryError()])
def test_whatever_a_tool_raises_is_a_result(error: BaseException) -> None:
    def fail(given: str) -> None:
        raise error

    with engine(Tool("fail", "fails", fail, effects=True)) as tools:
        assert turn(tools, "fail: now")[0].outcome == "failed"


def test_calls_without_effects_run_side_by_side_and_effects_in_their_order() -> None:
    barrier = threading.Barrier(2, timeout=60)
    order: list[str] = []
    meet = Tool("meet", "meets", lambda name: f"{name} {barrier.wait() >= 0}")
    act = Tool("act", "acts", order.append, effects=True)
    with engine(meet, act) as tools:
        results = turn(tools, "act: 1", "meet: Ann", "act: 2", "meet: Bob", "act: 3")
    assert order == ["1", "2", "3"]
    assert [result.text for result in results][1::2] == ["Ann True", "Bob True"]
    assert results[0].text == "This has been done."


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize(
    ("written", "outcome", "text"),
    [
        ('{"name": "add", "arguments": {"a": 1, "b": "2"}}', "done", "3"),
        ('{"name": "add", "arguments": "{\\"a\\": 1}", "id": "c1"}', "done", "2"),
        ('{"name": "add", "arguments": {"a": "one"}}', "refused", "a: Input should be a valid integer"),
        ('{"name": "add", "arguments": {}}', "refused", "a: Field required"),
        ('{"name": "add", "arguments": {"a": 1, "c": 2}}', "refused", "c: Extra inputs are not permitted"),
        ('{"name": "add", "arguments": "{\\"a\\": 1"}', "refused", "the arguments are not JSON"),
        ("add: 3, 4", "refused", "the arguments must be a JSON object with a, b"),
        ('{"name": "sub", "arguments": {}}', "refused", "There is no such tool; there are add."),
    ],
)
def test_arguments_are_checked_before_a_call(written: str, outcome: str, text: str) -> None:
    with engine(tool(add)) as tools:
        (result,) = turn(tools, written)
    assert result.outcome == outcome
    assert text in result.text


def test_an_answer_in_place_of_calls_is_passed_on() -> None:
    with engine(tool(add)) as tools:
        (results,) = tools.run(
            [Task(1, "q", "results", "call", {"calls": ['{"answer": "42"}']}, {"turn": 1})]
        )
    assert results == ["42"]


def test_an_error_within_a_function_is_not_taken_for_wrong_arguments() -> None:
    def root(x: float) -> float:
        raise ValueError("no root")

    with engine(tool(root)) as tools:
        (result,) = turn(tools, '{"name": "root", "arguments": {"x": -1}}')
    assert (result.outcome, result.text) == ("failed", "This failed: ValueError: no root")


def test_a_turn_may_take_longer_than_other_steps() -> None:
    """Its calls have times of their own, and nobody may be told that one is lost that goes on."""
    assert tools_engine([add]).engine.timeout_s is None


def test_results_of_a_run_have_a_length_together() -> None:
    """What is left is shared by the calls of a turn, and each result may have 200 characters in any case."""

    def run(tools: Tools, used: int) -> str:
        earlier = [ToolResult("huge", "", "x" * used)]
        inputs = {"call": "huge: now", "results1": earlier}
        (result,) = tools.run([Task(1, "q", "results", "call", inputs, {"max_chars": 5000, "max_calls": 4})])
        assert isinstance(result, ToolResult)
        return result.text

    with engine(Tool("huge", "is huge", lambda given: "x" * 10_000), max_chars=4000) as tools:
        assert run(tools, 0).startswith("x" * 1250 + "\n[Cut: these are the first 1250 of")
        assert run(tools, 4000).startswith("x" * 250 + "\n[Cut: ")
        assert run(tools, 9000).startswith("x" * 200 + "\n[Cut: ")
