"""Text streams in code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.programs import Desk, desk_llm

from stretto import Input, Runtime, Template
from stretto import programs as P
from stretto.components import LLMCall
from stretto.model.errors import EngineFailure, UserError

CALL = LLMCall(prompt="Say {x}", x=Input("x", "text"))
APP = Template("say", CALL, {"text": CALL["text"]})


@P.SemanticFunction
def say(x: P.SemanticVariable) -> None:
    """Say {{x}}: {{output:text}}"""


def fail(prompt: str) -> str:
    raise EngineFailure("a bad day")


def test_the_text_of_a_variable_comes_in_pieces() -> None:
    with Runtime([desk_llm(Desk(lambda prompt: "one two three"))]) as runtime, P.Client(runtime):
        said = say("it")
        assert "".join(said.stream_sync("latency")) == "one two three"
        assert "".join(said.stream_sync()) == "one two three", "a late reader gets all of it"


def test_the_text_of_an_app_comes_in_pieces() -> None:
    with Runtime([desk_llm(Desk(lambda prompt: "one two three"))]) as runtime:
        assert "".join(runtime.stream_sync(APP, {"x": "it"}, "text")) == "one two three"
        with pytest.raises(UserError, match="no output 'other'"):
            list(runtime.stream_sync(APP, {"x": "it"}, "other"))


def test_a_failure_is_raised_where_the_text_is_read() -> None:
    with Runtime([desk_llm(Desk(fail))]) as runtime, P.Client(runtime):
        said = say("it")
        with pytest.raises(EngineFailure, match="a bad day"):
            list(said.stream_sync())
        with pytest.raises(EngineFailure, match="a bad day"):
            list(runtime.stream_sync(APP, {"x": "it"}, "text"))


def test_an_iterator_that_is_closed_cancels_its_run() -> None:
    release = threading.Event()

    def slow(prompt: str) -> str:
        if "it" in prompt:
            return "word " * 100_000
        release.set()
        return "other"

    with Runtime([desk_llm(Desk(slow))]) as runtime:
        texts = runtime.stream_sync(APP, {"x": "it"}, "text")
        assert next(texts)
        texts.close()  # type: ignore[attr-defined]
        assert runtime.run_sync(APP, {"x": "that"})["text"] == "other"
        assert release.is_set()


def test_the_loop_of_the_runtime_is_not_blocked() -> None:
    async def main() -> None:
        async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime):
            said = say("it")
            with pytest.raises(UserError, match="use `async for`"):
                said.stream_sync()
            with pytest.raises(UserError):
                list(runtime.stream_sync(APP, {"x": "it"}, "text"))
            await said

    asyncio.run(main())
