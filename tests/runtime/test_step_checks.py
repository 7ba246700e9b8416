"""Steps that an engine has not the functions for are refused before anything runs."""

from __future__ import annotations

import asyncio

import pytest

from stretto import Input, Runtime, Template
from stretto.apps import agent
from stretto.components import ToolCall, tool
from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.engines.catalogue import tools_engine
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import deploy
from stretto.model.errors import ConfigError

ASKED: list[object] = []
LLM = deploy("llm", lambda config: ScriptedLLM(write, 4), contract="llm", keeps_state=True)


def write(task: object, decode: object) -> str:
    ASKED.append(task)
    return "[]"


@tool
def search(text: str) -> str:
    """Search the notes."""
    return text


@tool(effects=True)
def send(to: str) -> None:
    """Send a letter."""


@tool
def searches(text: str) -> str:
    """Search all."""
    return text


def test_a_tool_that_its_engine_lacks_is_named_before_the_llm_is_asked() -> None:
    with Runtime([LLM, tools_engine([searches])]) as runtime:
        for tools in ([search], [searches, send]):
            with pytest.raises(ConfigError, match="step 'results': there is no tool") as refused:
                runtime.run_sync(agent(tools), {"question": "Who?"})
            assert str(refused.value).endswith("there are searches")
        with pytest.raises(ConfigError, match="no tool 'search'; did you mean searches"):
            runtime.run_sync(agent([search]), {"question": "Who?"})
    assert not ASKED


def test_a_function_that_its_engine_lacks_is_named_before_the_query() -> None:
    called = ToolCall(function="uper", text=Input("text", "text"))
    app = Template("shout", called, {"loud": called["result"]})
    for functions, rest in (({"upper": str.upper}, "; did you mean upper"), ({}, "; there are none")):
        calls = deploy("calls", Calls, CallsConfig(functions))
        with Runtime([calls]) as runtime, pytest.raises(ConfigError, match=f"no function 'uper'{rest}"):
            runtime.run_sync(app, {"text": "a"})


def test_a_function_that_a_later_replica_brings_is_called() -> None:
    called = ToolCall(function="upper", text=Input("text", "text"))
    app = Template("shout", called, {"loud": called["result"]})
    calls = deploy("calls", Calls, CallsConfig({"lower": str.lower}))
    (replica,) = deploy("calls", Calls, CallsConfig({"upper": lambda text: text.upper()})).replicas

    async def main() -> object:
        async with Runtime([calls]) as runtime:
            with pytest.raises(ConfigError, match="no function 'upper'"):
                await runtime.run(app, {"text": "a"})
            runtime.add_instance("calls", replica)
            runtime.drain_instance("calls", 0)
            return (await runtime.run(app, {"text": "a"}))["loud"]

    assert asyncio.run(main()) == "A"
