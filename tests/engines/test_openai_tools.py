"""An agent at a server that takes tools: calls and results are messages, and refused tools become words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.emulated import emulating, fleet_of
from support.openai_stub import EVENT_STREAM, OpenAIStub, Reply
from support.tiny_checkpoint import build_tokenizer

from stretto import Runtime
from stretto.apps import agent
from stretto.components import AgentRun, tool
from stretto.engines.catalogue import tools_engine
from stretto.engines.llms import llm_engine
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.discovery import discover
from stretto.engines.openai_server.http import Http
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.model.errors import CapacityError
from stretto.model.values import Segment
from stretto.wire.errors import ApiError
from stretto.wire.paths import ApiChoice
from stretto.wire.tool_calls import CallPart, joined_calls, read_tool_calls

pytest_plugins = ("support.llm_fixtures",)


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"-3 degrees in {city}"


async def ask(url: str, question: str, api: ApiChoice = "chat", **settings: Any) -> AgentRun:
    async with Runtime([llm_engine(url, api=api), tools_engine([weather])]) as runtime:
        app = agent([weather], instructions="Be short.", **settings)
        outputs = await runtime.run(app, {"question": question})
        run = outputs["run"]
        assert isinstance(run, AgentRun)
        assert run.answer == outputs["answer"]
        return run


SCRIPT = [
    {"when": "", "content": "I do not know."},
    {
        "when": "Oslo",
        "content": "Let me see.",
        "tool_calls": [
            {"name": "weather", "arguments": {"city": "Oslo"}},
            {"name": "weather", "arguments": {"town": "Oslo"}},
        ],
    },
    {"when": "-3 degrees in Oslo", "content": "It is cold in Oslo."},
]


@pytest.mark.parametrize("takes_calls", [True, False])
def test_an_agent_answers_with_the_emulators_scripted_calls(tmp_path: Path, *, takes_calls: bool) -> None:
    """A chat has tools, or calls in words where the server takes none."""
    file = tmp_path / "replies.json"
    file.write_text(json.dumps(SCRIPT))
    with emulating(fleet_of(replies=file)) as (url,):
        llm = llm_engine(url, api="chat" if takes_calls else "completions")

        async def main() -> AgentRun:
            async with Runtime([llm, tools_engine([weather])]) as runtime:
                outputs = await runtime.run(agent([weather]), {"question": "How is it in Oslo?"})
                found = outputs["run"]
                assert isinstance(found, AgentRun)
                return found

        run = asyncio.run(main())
    assert run.answer == "It is cold in Oslo."
    assert run.ended == "answered"
    first, second = run.calls
    assert (first.outcome, first.text) == ("done", "-3 degrees in Oslo")
    assert (second.outcome, second.arguments) == ("refused", '{"town": "Oslo"}')
    assert first.said == ("Let me see." if takes_calls else "")
    assert bool(first.id) == takes_calls


def chat(message: Mapping[str, object], finish: str = "stop") -> Reply:
    choice = {"index": 0, "delta": message, "finish_reason": finish}
    data = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    return Reply(raw=data.encode(), headers=EVENT_STREAM)


def called(*calls: tuple[str, object]) -> Reply:
    listed = [
        {"index": i, "id": f"c{i}", "function": {"name": name, "arguments": given}}
        for i, (name, given) in enumerate(calls)
    ]
    return chat({"role": "assistant", "content": None, "tool_calls": listed}, "tool_calls")


def served(*replies: Reply, **settings: Any) -> tuple[AgentRun, list[Any]]:
    asked: list[Any] = []

    def answer(body: Mapping[str, Any]) -> Reply:
        asked.append(body)
        return replies[len(asked) - 1]

    async def main() -> AgentRun:
        async with OpenAIStub(answer) as stub:
            return await ask(stub.url, "How is it in Oslo?", **settings)

    return asyncio.run(main()), asked


def test_calls_and_results_are_messages() -> None:
    run, asked = served(called(("weather", '{"city": "Oslo"}'), ("weather", "{")), chat({"content": "Cold."}))
    assert run.answer == "Cold."
    assert [one["function"]["name"] for one in asked[0]["tools"]] == ["weather"]
    assert "json_schema" not in str(asked[0])
    system, user = asked[0]["messages"]
    assert (system["content"], user["content"]) == ("Be short.", "How is it in Oslo?")
    _, _, assistant, *results = asked[1]["messages"]
    assert assistant["tool_calls"] == [
        {
            "id": "c0",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
        },
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"input": "{"}'}},
    ]
    assert [(one["role"], one["tool_call_id"]) for one in results] == [("tool", "c0"), ("tool", "c1")]
    assert results[0]["content"] == "-3 degrees in Oslo"
    assert "not JSON" in results[1]["content"]


RECORDED: tuple[
    dict[str, Any], ...
] = (  # vLLM 0.32 with --tool-call-parser hermes; ids and times are left out
    {"delta": {"role": "assistant", "content": ""}},
    {"delta": {"tool_calls": [{"index": 0, "id": "t92f", "function": {"name": "weather"}}]}},
    *(
        {"delta": {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}
        for piece in ("{", '\n    "', "city", '":', ' "', "Os", "lo", '"', "\n}")
    ),
    {"delta": {}, "finish_reason": "tool_calls", "stop_reason": None, "token_ids": None},
)


@pytest.mark.parametrize("has_template", [True, False])
def test_tools_go_by_chat_to_a_server_whose_tokenizer_is_known(
    tiny_chat_checkpoint: Path, *, has_template: bool
) -> None:
    """Such a server gets other prompts as token ids, and reads calls of tools in chats alone. A server that
    has another chat template than stands beside its model is asked by chat for all.
    """
    chunks = [json.dumps({"choices": [{"index": 0, **choice}]}) for choice in RECORDED]
    raw = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"]).encode()
    replies = [Reply(raw=raw, headers=EVENT_STREAM), chat({"content": "Cold."})]
    tokenizer, ours = build_tokenizer(), PromptTokenizer(tiny_chat_checkpoint)

    def tokens(body: Mapping[str, Any]) -> str:
        if "prompt" in body:
            return json.dumps({"tokens": tokenizer.encode(body["prompt"], add_special_tokens=False).ids})
        prompt = (Segment(body["messages"][0]["content"], "probe", role="user"),)
        return json.dumps({"tokens": ours.encode(prompt) + ours.end_of(prompt) * has_template})

    async def main() -> AgentRun:
        model = {"root": str(tiny_chat_checkpoint)}
        pages = {"POST /tokenize": tokens}
        async with OpenAIStub(lambda _: replies.pop(0), model=model, pages=pages) as stub:
            run = await ask(stub.url, "How is it in Oslo?", api="auto")
            assert all("messages" in body and "tools" in body for body in stub.requests)
            known = await discover(Http(config := OpenAIServerConfig(stub.url)), config)
            assert known.api == ("completions" if has_template else "chat")
            return run

    run = asyncio.run(main())
    assert [(one.id, one.arguments) for one in run.calls] == [("t92f", '{\n    "city": "Oslo"\n}')]
    assert run.answer == "Cold."


def test_after_the_last_turn_calls_are_forbidden() -> None:
    run, asked = served(called(("weather", '{"city": "Oslo"}')), chat({"content": "Cold."}), max_turns=1)
    assert (run.answer, run.ended) == ("Cold.", "max_turns")
    assert ["tool_choice" in body for body in asked] == [False, True]
    assert asked[1]["tool_choice"] == "none"
    assert asked[1]["tools"] == asked[0]["tools"]


@pytest.mark.parametrize(
    ("status", "reason", "num_refused"),
    [
        (400, '"auto" tool choice requires --enable-auto-tool-choice', 1),
        (500, "tools param requires --jinja flag", 3),  # which is tried again before
    ],
)
def test_a_server_that_refuses_tools_gets_them_in_words(status: int, reason: str, num_refused: int) -> None:
    refusal = ApiError(status, reason, "BadRequestError")
    calls = '[{"name": "weather", "arguments": {"city": "Oslo"}}]'
    replies = (
        *[Reply.refusing(refusal)] * num_refused,
        chat({"content": calls}),
        chat({"content": "[]"}),
        chat({"content": "Cold."}),
    )
    run, asked = served(*replies)
    assert run.answer == "Cold."
    assert run.calls[0].text == "-3 degrees in Oslo"
    assert ["tools" in body for body in asked] == [True] * num_refused + [False] * 3
    assert "response_format" not in str(asked)
    told = asked[num_refused]["messages"][0]["content"]
    assert "- weather(city: string): Tell the weather of a city." in told


def test_a_server_that_is_to_hold_calls_to_the_schema_gets_the_tools_in_words() -> None:
    calls = '[{"name": "weather", "arguments": {"city": "Oslo"}}]'
    run, asked = served(chat({"content": calls}), chat({"content": "Cold."}), constrained=True, max_turns=1)
    assert [call.text for call in run.calls] == ["-3 degrees in Oslo"]
    assert ["response_format" in body for body in asked] == [True, False]
    assert not any("tools" in body for body in asked)


def test_other_refusals_are_no_refusals_of_tools() -> None:
    too_long = ApiError(400, "This model's maximum context length is 4096 tokens.", "BadRequestError")
    with pytest.raises(CapacityError, match="maximum context length"):
        served(Reply.refusing(too_long))


@pytest.mark.parametrize(
    "content",
    [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        '```json\n[{"name": "weather", "arguments": {"city": "Oslo"}}]\n```',
        '{"name": "weather", "parameters": {"city": "Oslo"}}',
    ],
)
def test_calls_that_a_server_leaves_as_text_are_calls(content: str) -> None:
    run, _ = served(chat({"content": content}), chat({"content": "Cold."}))
    assert run.answer == "Cold."
    assert [call.text for call in run.calls] == ["-3 degrees in Oslo"]


@pytest.mark.parametrize("content", ["[1] says that it is cold.", '{"cold": true}', "[see: above]"])
def test_an_answer_in_brackets_is_an_answer(content: str) -> None:
    run, _ = served(chat({"content": content}))
    assert (run.answer, run.calls) == (content, ())


def test_pieces_of_calls_are_joined_whatever_a_server_leaves_out() -> None:
    whole = [CallPart(0, "a", "f", '{"x": 1}'), CallPart(1, "b", "g", "{}")]
    assert (
        joined_calls([CallPart(0, "a", "f"), CallPart(1, "b", "g", "{}"), CallPart(0, arguments='{"x": 1}')])
        == whole
    )
    bare = [
        CallPart(None, "a", "f", '{"x"'),
        CallPart(None, arguments=": 1}"),
        CallPart(None, "b", "g", "{}"),
    ]
    assert joined_calls(bare) == whole
    alike = [
        CallPart(0, "a", "f", '{"x"'),
        CallPart(0, arguments=": 1}"),
        CallPart(0, "b", "g", "{"),
        CallPart(0, "b", arguments="}"),
    ]
    assert joined_calls(alike) == whole
    listed = [
        {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}},
        None,
        {"function": None},
        {"id": 1},
    ]
    assert read_tool_calls(listed) == (CallPart(None, "a", "f", '{"x": 1}'),)
