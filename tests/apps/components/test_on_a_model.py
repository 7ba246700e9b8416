"""Components that grow, on a real model with random weights: equal with and without passes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stretto import Input, Runtime, Template
from stretto.components import Agent, MapReduce, Tool
from stretto.engines.catalogue import tools_engine
from stretto.model.deployment import deploy
from stretto.model.profile import Profile

pytest_plugins = ("support.llm_fixtures",)


def outputs(
    folder: Path, app: Template, inputs: Mapping[str, object], tools: tuple[Tool, ...] = ()
) -> list[Mapping[str, Any]]:
    """Run the app without passes, with all of them, and once more with what is cached by then."""
    from stretto.engines.transformer.engine import TransformerLLM
    from stretto.engines.transformer.engine_config import TransformerConfig

    llm = deploy(
        "llm", TransformerLLM, TransformerConfig(folder), contract="llm", keeps_state=True, profile=Profile()
    )

    async def main() -> list[Mapping[str, Any]]:
        async with Runtime([llm, tools_engine(tools)]) as runtime:
            return [await runtime.run(app, inputs, passes=passes) for passes in ("none", "all", "all")]

    return asyncio.run(main())


def test_map_reduce_writes_the_same(tiny_checkpoint: Path) -> None:
    reduced = MapReduce(items=Input("texts", "list[text]"), fan_in=2, max_tokens=8)
    app = Template("t", reduced, {"text": reduced["text"], "parts": reduced["parts"]})
    plain, *others = outputs(tiny_checkpoint, app, {"texts": ["A fugue.", "A river runs.", "A bridge."]})
    assert len(set(plain["parts"])) == 3
    assert others == [plain, plain]


def test_an_agent_held_to_its_tools_writes_the_same(tiny_chat_checkpoint: Path) -> None:
    pytest.importorskip("llguidance")
    called: list[tuple[str, str]] = []

    def look(text: str) -> str:
        called.append(("look", text))
        return "It is here."

    def ask(text: str) -> str:
        called.append(("ask", text))
        return "Nobody knows."

    tools = (Tool("look", "look for it", look), Tool("ask", "ask somebody", ask))
    agent = Agent(
        question=Input("question", "text"),
        tools=tools,
        constrained=True,
        max_turns=2,
        max_calls=1,
        call_tokens=500,
        max_tokens=8,
    )
    app = Template("t", agent, {"answer": agent["answer"]})
    plain, *others = outputs(tiny_chat_checkpoint, app, {"question": "Where is it?"}, tools)
    assert plain["answer"]
    assert others == [plain, plain]
    assert len(called) % 3 == 0
    assert called[: len(called) // 3] * 3 == called, "the three runs make the same calls"
