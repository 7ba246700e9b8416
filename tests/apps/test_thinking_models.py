"""What a model only thinks of is not searched for, not shown, not in a later prompt, and calls no tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.plain_server import Answered, PlainServer, as_events, as_json, listing

from stretto import Input, Runtime, Template
from stretto.components import Agent, LLMCall, QueryExpansion, Synthesis, Tool
from stretto.engines.catalogue import tools_engine, transforms_engine
from stretto.engines.llms import llm_engine
from stretto.model.values import Chunk, Hit

SECRET = 'Perhaps ["pay: 100"] or {"name": "pay", "arguments": "100"}? A draft: red.'
Wrap = Callable[[str, str], Mapping[str, Any]]
FORMS: dict[str, Wrap] = {
    "tags": lambda thoughts, text: {"content": f"<think>\n{thoughts}\n</think>\n\n{text}"},
    "field": lambda thoughts, text: {"reasoning_content": thoughts, "content": text},
    "other field": lambda thoughts, text: {"reasoning": thoughts, "content": text},
    "other tags": lambda thoughts, text: {"content": f"[THINK]{thoughts}[/THINK]{text}"},
    "parts": lambda thoughts, text: {
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": thoughts}]},
            {"type": "text", "text": text},
        ]
    },
}
QUESTION = Input("question", "text")


def thinking(
    form: str,
    answers: Callable[[str], str],
    build: Callable[[str], tuple[Template, list[Any], Mapping[str, Any]]],
) -> tuple[Mapping[str, object], list[str]]:
    """Run an app on a server whose model thinks before each answer; return the outputs, and the prompts."""
    prompts: list[str] = []

    def serve(what: str, body: Mapping[str, Any]) -> Answered:
        if what == "GET /v1/models":
            return listing("m")
        if what != "POST /v1/chat/completions":
            return as_json({"detail": "Not Found"}, 404)
        prompts.append("\n".join(str(message["content"]) for message in body["messages"]))
        message = FORMS[form](SECRET, answers(prompts[-1]))
        if body.get("stream"):
            return as_events(
                {"choices": [{"delta": message}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}
            )
        return as_json({"choices": [{"message": message, "finish_reason": "stop"}]})

    async def main() -> Mapping[str, object]:
        async with PlainServer(serve) as server:
            app, engines, inputs = build(server.url)
            async with Runtime([llm_engine(server.url), transforms_engine(), *engines]) as runtime:
                return await runtime.run(app, {"question": "What colour?", **inputs})

    return asyncio.run(main()), prompts


@pytest.mark.parametrize("form", FORMS)
def test_an_agent_runs_no_tool_of_its_thoughts(form: str) -> None:
    paid: list[str] = []
    tools = (
        Tool("pay", "pays", paid.append, effects=True),
        Tool("look", "looks", lambda given: f"saw {given}"),
    )

    def answers(prompt: str) -> str:
        if "saw the pier" in prompt:
            return "[]" if "list" in prompt.rpartition("saw the pier")[2] else "It is green."
        return '["look: the pier"]'

    def build(url: str) -> tuple[Template, list[Any], Mapping[str, Any]]:
        agent = Agent(question=QUESTION, tools=tools)
        return Template("agent", agent, {"answer": agent["answer"]}), [tools_engine(tools)], {}

    outputs, prompts = thinking(form, answers, build)
    assert outputs == {"answer": "It is green."}
    assert paid == []
    assert len(prompts) >= 2
    assert not any("Perhaps" in prompt for prompt in prompts)


@pytest.mark.parametrize("form", FORMS)
def test_an_agent_that_only_thinks_of_a_call_runs_nothing(form: str) -> None:
    paid: list[str] = []
    tools = (Tool("pay", "pays", paid.append, effects=True),)

    def build(url: str) -> tuple[Template, list[Any], Mapping[str, Any]]:
        agent = Agent(question=QUESTION, tools=tools)
        return Template("agent", agent, {"answer": agent["answer"]}), [tools_engine(tools)], {}

    thinking(form, lambda prompt: "I would rather not.", build)
    assert paid == []


@pytest.mark.parametrize("form", FORMS)
def test_searches_and_drafts_are_those_of_answers(form: str) -> None:
    def build(url: str) -> tuple[Template, list[Any], Mapping[str, Any]]:
        hits = Input("hits", "list[hit]")
        refined = Synthesis(question=QUESTION, hits=hits, mode="refine")
        expanded = QueryExpansion(question=QUESTION, num_queries=2)
        plain = LLMCall(prompt="Say it: {question}", question=QUESTION)
        outputs = {"answer": refined["answer"], "queries": expanded["queries"], "said": plain["text"]}
        found = [Hit(Chunk("a.txt", at, f"Passage {at}."), 0.5) for at in range(3)]
        return Template("rag", [refined, expanded, plain], outputs), [], {"hits": found}

    def answers(prompt: str) -> str:
        return json.dumps(["pier colour", "pier paint"]) if "list" in prompt else "Green."

    outputs, prompts = thinking(form, answers, build)
    assert outputs == {"answer": "Green.", "queries": ["pier colour", "pier paint"], "said": "Green."}
    assert sum("Green." in prompt for prompt in prompts) >= 2  # drafts
    assert not any("Perhaps" in prompt or "red" in prompt.split() for prompt in prompts)
