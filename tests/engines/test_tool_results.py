"""Tools may be called in several forms, and may return any data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date

import pytest

from stretto.components import Tool, ToolResult
from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.engines.batch.python_results import result_text
from stretto.engines.batch.tools import Tools, ToolsConfig
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit


@dataclass
class Weather:
    city: str
    degrees: float


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (None, ""),
        (42, "42"),
        (2.5, "2.5"),
        (True, "True"),
        ({"a": [1, "é"], 2: None}, '{"a": [1, "é"], "2": null}'),
        ([{"a": 1}, "b"], '[{"a": 1}, "b"]'),
        (["a", "b"], "a\n\nb"),
        ({"b", "a"}, '["a", "b"]'),
        (b"\xc3\xa9 \xff", "é \ufffd"),
        ({"raw": b"x", "day": date(2026, 1, 2)}, '{"raw": "x", "day": "2026-01-02"}'),
        (Weather("Oslo", -3.5), '{"city": "Oslo", "degrees": -3.5}'),
        ([Weather("Oslo", 1)], '[{"city": "Oslo", "degrees": 1}]'),
        ([Hit(Chunk("file", 0, "text"), 0.5)], "text"),
        ("half \ud83d, whole \ud83d\ude00", "half \ufffd, whole 😀"),
        ({"half": "\ude00"}, '{"half": "\ufffd"}'),
    ],
)
def test_results_become_text(result: object, text: str) -> None:
    assert result_text(result) == text


@pytest.mark.parametrize("result", [object(), (n for n in range(3)), CYCLE])
def test_what_is_no_data_has_no_text(result: object) -> None:
    with pytest.raises((TypeError, RecursionError)):
        result_text(result)


@contextmanager
def engine(*tools: Tool) -> Iterator[Tools]:
    made = Tools(ToolsConfig(tools))
    try:
        yield made
    finally:
        made.close()


def call(tools: Tools, written: str) -> ToolResult:
    (result,) = tools.run([Task(1, "q", "results", "call", {"call": written}, {"result": "any"})])
    assert isinstance(result, ToolResult)
    return result


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("weather: Oslo", "Oslo"),
        ('{"name": "weather", "arguments": {"city": "Oslo"}}', '{"city": "Oslo"}'),
        ('{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}', '{"city": "Oslo"}'),
        ('{"type": "function", "function": {"name": "weather", "arguments": "Oslo"}}', "Oslo"),
        ('{"name": "weather", "parameters": ["Oslo"]}', '["Oslo"]'),
    ],
)
def test_a_tool_gets_the_arguments_of_its_call(written: str, given: str) -> None:
    with engine(Tool("weather", "of a city", lambda city: {"sunny in": city})) as tools:
        answer = call(tools, written)
    assert answer == ToolResult("weather", given, result_text({"sunny in": given}))


@pytest.mark.parametrize("written", ['{"name": "act"}', '{"name": "act", "arguments"', '{"act": "x"}'])
def test_a_call_that_cannot_be_read_runs_nothing_and_is_told(written: str) -> None:
    ran: list[str] = []
    with engine(Tool("act", "acts", ran.append, effects=True), Tool("look", "looks", ran.append)) as tools:
        answer = call(tools, written)
    assert ran == []
    assert answer.outcome == "refused"
    assert str(answer).startswith(f"{written}\nThis was not done: the call ")


def test_coroutine_functions_are_awaited_on_one_loop() -> None:
    loops: list[object] = []

    async def look(given: str) -> dict[str, str]:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return {"found": given}

    async def fail(given: str) -> None:
        raise KeyError(given)

    tools = (
        Tool("look", "looks", look),
        Tool("act", "acts", look, effects=True),
        Tool("fail", "fails", fail),
    )
    with engine(*tools) as running:
        assert str(call(running, "look: a")) == 'look: a\n{"found": "a"}'
        assert str(call(running, "act: b")) == 'act: b\n{"found": "b"}'
        assert str(call(running, "fail: c")) == "fail: c\nThis failed: KeyError: 'c'"
    assert len(loops) == 2
    assert loops[0] is loops[1]


def test_halves_of_characters_do_not_reach_the_prompt() -> None:
    def fail(given: str) -> str:
        raise ValueError(f"\udc00{given}")

    with engine(Tool("half", "halves", lambda given: "\ud83d"), Tool("fail", "fails", fail)) as tools:
        assert str(call(tools, "half: x")) == "half: x\n\ufffd"
        assert str(call(tools, "fail: x")) == "fail: x\nThis failed: ValueError: \ufffdx"


def test_functions_of_steps_may_be_coroutine_functions() -> None:
    async def double(number: int) -> int:
        return 2 * number

    calls = Calls(CallsConfig({"double": double}))
    task = Task(1, "q", "step", "call", {"number": 4}, {"function": "double", "result": "number"})
    try:
        assert calls.run([task]) == [8]
    finally:
        calls.close()
