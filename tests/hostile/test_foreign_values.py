"""Values and code of users that do what nobody expects: their query ends, with an error that names the step,
and all others are answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Input, Runtime, Template
from stretto.components import Condition, FirstPresent, LLMCall, ToolCall
from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import EngineFailure, StrettoError
from stretto.model.foreign import MAX_DEPTH

TEXT = Input("text", "text")


def holding_itself() -> object:
    value: list[object] = []
    value.append([{"inner": value}])
    return value


def nested(depth: int) -> object:
    value: object = "end"
    for _ in range(depth):
        value = [value]
    return value


def nested_dicts() -> object:
    value: object = "end"
    for place in range(2 * MAX_DEPTH):
        value = {"a": value} if place % 2 else (value,)
    return value


def repeating() -> object:
    """Return a small value whose text would have 2^60 words."""
    value: object = "word"
    for _ in range(60):
        value = [value, value]
    return value


class Breaks(Exception):
    def __str__(self) -> str:
        raise ValueError("no text of this error")


def _breaks(*_: object, **__: object) -> Any:
    raise Breaks


class BrokenObject:
    __eq__ = __repr__ = __str__ = __len__ = __iter__ = __bool__ = __hash__ = __reduce__ = _breaks
    __getstate__ = __copy__ = __deepcopy__ = _breaks


class BrokenList(list[object]):
    __eq__ = __repr__ = __len__ = __iter__ = __getitem__ = __bool__ = __hash__ = _breaks  # type: ignore[assignment]


class BrokenSequence(Sequence[object]):
    __len__ = __getitem__ = __iter__ = __contains__ = _breaks


class BrokenMapping(Mapping[str, object]):
    __len__ = __getitem__ = __iter__ = __contains__ = _breaks


class BrokenText(str):
    __eq__ = __repr__ = __str__ = __len__ = __iter__ = __hash__ = encode = _breaks


class OddFailure(EngineFailure):
    """An error of a user's own type: it takes other arguments, and lacks what errors have."""

    def __init__(self, code: int, why: object) -> None:
        self.code = code


class Panic(BaseException):
    """An error that is no `Exception`, as a panic of a library in Rust is."""


def _panics(*_: object, **__: object) -> Any:
    raise Panic("a panic")


class PanickingList(list[object]):
    __iter__ = __len__ = __getitem__ = _panics


class PanickingText(str):
    __str__ = __eq__ = __hash__ = encode = split = _panics


class PanickingObject:
    __eq__ = __bool__ = __str__ = __getattr__ = __reduce__ = _panics


class PanicsAgain(Exception):
    __str__ = _panics


VALUES: Mapping[str, Callable[[], object]] = {
    "holding itself": holding_itself,
    "nested": lambda: nested(MAX_DEPTH + 1),
    "nested far too deep": lambda: nested(100_000),
    "nested dicts": nested_dicts,
    "repeating": repeating,
    "broken object": BrokenObject,
    "broken list": lambda: BrokenList([1, 2]),
    "broken sequence": BrokenSequence,
    "broken mapping": BrokenMapping,
    "broken text": lambda: BrokenText("abc"),
    "list of broken objects": lambda: [BrokenObject(), BrokenText("a"), BrokenList()],
    "huge number": lambda: 10**10_000,
    "half a surrogate pair": lambda: "a\ud800b",
    "list of halves": lambda: ["\udcff", "fine"],
    "no number": lambda: [float("nan"), float("inf")],
    "a type": lambda: BrokenObject,
    "panicking list": lambda: PanickingList([1]),
    "panicking text": lambda: PanickingText("abc"),
    "list of panicking objects": lambda: [PanickingObject(), PanickingText("a"), PanickingList()],
    "bytes": lambda: b"\xff\xfe",
    "set": lambda: {1, 2, 3},
    "generator": lambda: (i for i in range(3)),
    "endless": lambda: iter(int, 1),
}


def raising(error: BaseException) -> Callable[[], object]:
    def function() -> object:
        raise error

    return function


RAISING: Mapping[str, Callable[[], object]] = {
    "error without a text": raising(Breaks()),
    "error of a user's own type": raising(OddFailure(3, object())),
    "recursion": lambda: json.loads("[" * 100_000),
    "memory": raising(MemoryError()),
    "stop": raising(StopIteration(3)),
    "async stop": raising(StopAsyncIteration()),
    "group": raising(ExceptionGroup("many", [ValueError("a"), Breaks()])),
    "panic": raising(Panic("a panic")),
    "group with an interrupt": raising(BaseExceptionGroup("many", [KeyboardInterrupt()])),
    "error that panics when it is printed": raising(PanicsAgain()),
    "exit": raising(SystemExit(3)),
    "generator exit": raising(GeneratorExit()),
    "cancelled": raising(asyncio.CancelledError()),
    "assertion": raising(AssertionError()),
    "timeout": raising(TimeoutError()),
}


def readers(tool: ToolCall) -> Mapping[str, tuple[Any, str]]:
    """The steps that read the tool's value, each with the name of its out port."""
    value = tool["result"]
    return {
        "output": (tool, "result"),
        "prompt": (LLMCall(name="said", prompt="Say {a}", a=value), "text"),
        "each": (LLMCall(name="said", prompt="Say {a}", a=value, each="a"), "text"),
        "condition": (Condition(name="split", value=value, equals="x"), "yes"),
        "truth": (Condition(name="split", value=value), "yes"),
        "first": (FirstPresent(name="first", a=value), "value"),
        "tool": (ToolCall(name="next", function="echo", text=value), "result"),
        "each tool": (ToolCall(name="next", function="echo", text=value, each="text"), "result"),
    }


READERS = tuple(readers(ToolCall(name="tool", function="f", result="list[text]")))


def app(reader: str) -> Template:
    result = "list[text]" if reader.startswith("each") else "text" if reader == "prompt" else "any"
    tool = ToolCall(name="tool", function="odd", text=TEXT, result=result)
    component, port = readers(tool)[reader]
    return Template("hostile", component, {"out": component[port]})


def plain() -> Template:
    call = ToolCall(name="plain", function="wait", text=TEXT)
    said = LLMCall(name="said", prompt="Say {a}", a=call["result"])
    return Template("plain", said, {"out": said["text"]})


def engines(function: Callable[[], object], runs_in: str) -> list[Deployment]:
    """Engines that a whole query of another app uses too."""
    functions = {"odd": lambda text: function(), "echo": lambda text: text, "wait": lambda text: text}
    return [
        deploy("calls", Calls, CallsConfig(functions), runs_in=runs_in),
        deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm"),
    ]


async def hostile_run(function: Callable[[], object], reader: str, runs_in: str) -> object:
    """Run a hostile query among others; return its outputs or its error, when all others are answered."""
    async with asyncio.timeout(60), Runtime(engines(function, runs_in)) as runtime:
        others = [runtime.run(plain(), {"text": str(number)}) for number in range(3)]
        hostile = runtime.run(app(reader), {"text": "x"})
        result, *answers = await asyncio.gather(hostile, *others, return_exceptions=True)
        answers.append(await runtime.run(plain(), {"text": "after"}))
        for answer in answers:
            assert isinstance(answer, Mapping), answer
        runtime.system.check_invariants()
        assert runtime.system.is_idle()
        return result


def check(result: object) -> None:
    """Check that a query has ended with outputs, or an error that names a step and has a text."""
    assert isinstance(result, StrettoError | Mapping), type(result)
    if isinstance(result, StrettoError):
        assert result.step in ("tool", "said", "said.prompt", "split", "first", "next")
        assert str(result)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("value", VALUES)
def test_a_hostile_value_ends_its_own_query_alone(value: str, reader: str) -> None:
    check(asyncio.run(hostile_run(VALUES[value], reader, "thread")))


@pytest.mark.parametrize("value", VALUES)
def test_a_hostile_value_of_a_tool_on_the_loop_ends_its_own_query_alone(value: str) -> None:
    check(asyncio.run(hostile_run(VALUES[value], "prompt", "loop")))


@pytest.mark.parametrize("runs_in", ["thread", "loop"])
@pytest.mark.parametrize("error", RAISING)
def test_whatever_a_tool_raises_ends_its_own_query_alone(error: str, runs_in: str) -> None:
    result = asyncio.run(hostile_run(RAISING[error], "output", runs_in))
    assert isinstance(result, StrettoError)
    check(result)


def test_an_interrupt_that_a_tool_raises_on_its_thread_is_its_failure() -> None:
    result = asyncio.run(hostile_run(raising(KeyboardInterrupt()), "output", "thread"))
    assert isinstance(result, EngineFailure)
    check(result)


class NotToBeRead:
    """An object that pickles, and does not unpickle."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def __reduce__(self) -> tuple[object, ...]:
        return _breaks, ("x" * self._num_bytes,)


OF_A_PROCESS: Mapping[str, Callable[[], object]] = {
    **VALUES,
    **RAISING,
    "not to be read": lambda: NotToBeRead(1),
    "large and not to be read": lambda: NotToBeRead(100_000),
}


def in_a_process(text: str) -> object:
    return OF_A_PROCESS[text]() if text in OF_A_PROCESS else text


def in_a_process_too(text: object) -> object:
    return text


def through_a_process(type_: str = "any") -> Template:
    call = ToolCall(name="call", function="odd", text=Input("text", type_), result="any")
    return Template("through", call, {"out": call["result"]})


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 6])
def test_hostile_values_of_a_process_end_their_own_queries_alone(every: int) -> None:
    """Many of them end the process."""

    async def main() -> None:
        calls = deploy("calls", Calls, CallsConfig({"odd": in_a_process}), runs_in="process")
        app = through_a_process("text")
        async with asyncio.timeout(600), Runtime([calls]) as runtime:
            for name in list(OF_A_PROCESS)[::every]:
                both = (runtime.run(app, {"text": text}) for text in (name, "plain"))
                hostile, plain = await asyncio.gather(*both, return_exceptions=True)
                assert isinstance(hostile, StrettoError | Mapping), name
                assert plain == {"out": "plain"}, name

    asyncio.run(main())


@pytest.mark.parametrize("runs_in", ["thread", "process"])
def test_hostile_inputs_end_their_own_queries_alone(runs_in: str) -> None:
    async def main() -> None:
        calls = deploy("calls", Calls, CallsConfig({"odd": in_a_process_too}), runs_in=runs_in)
        app = through_a_process()
        async with asyncio.timeout(600), Runtime([calls]) as runtime:
            for name, make in VALUES.items():
                both = (runtime.run(app, {"text": value}) for value in (make(), "plain"))
                hostile, plain = await asyncio.gather(*both, return_exceptions=True)
                assert isinstance(hostile, StrettoError | Mapping), name
                assert plain == {"out": "plain"}, name

    asyncio.run(main())
