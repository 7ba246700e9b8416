"""A server is asked by chat unless the user says otherwise, or it has no chat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.openai_stub import MODEL, OpenAIStub, Reply
from support.tiny_checkpoint import BOS

from stretto.engines.chat_markup import PLAIN_STOP
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask
from stretto.model.values import Segment

pytest_plugins = ("support.llm_fixtures",)

PROMPT = (
    Segment("Answer shortly.", role="system"),
    Segment("Question:\n", role="user"),
    Segment("What is a stretto?", "question"),
)
PLAIN = "Answer shortly.\nQuestion:\nWhat is a stretto?\nAnswer:"
HELLO = Reply((" Hello",), finish="stop")
Answer = Callable[[Mapping[str, Any]], Reply]


def refused(status: int, message: str) -> Reply:
    return Reply(status=status, raw=json.dumps({"error": {"message": message}}).encode())


def asked(
    answer: Answer,
    *,
    num_at_once: int = 1,
    rounds: int = 1,
    model: Mapping[str, object] | None = None,
    **config: Any,
) -> tuple[list[LLMEvent], list[Mapping[str, Any]]]:
    """Return the endings of the prompt's tasks, and the bodies of the requests."""

    async def main() -> tuple[list[LLMEvent], list[Mapping[str, Any]]]:
        ends: list[LLMEvent] = []

        def emit(event: LLMEvent) -> None:
            if isinstance(event, Done | Failed):
                ends.append(event)

        async with OpenAIStub(answer, model=model) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url, warms_prefixes=False, **config))
            for number in range(rounds):
                tasks = [
                    LLMTask(number * num_at_once + place, "q", "answer", PROMPT, Decode())
                    for place in range(num_at_once)
                ]
                await asyncio.gather(*(server.generate(task, emit) for task in tasks))
            await server.aclose()
            return ends, stub.requests

    return asyncio.run(main())


def values(ends: list[LLMEvent]) -> list[object]:
    return [end.value if isinstance(end, Done) else end for end in ends]


def test_a_server_is_asked_by_chat() -> None:
    ends, (body,) = asked(lambda _: HELLO)
    assert values(ends) == ["Hello"]
    assert body["messages"] == [
        {"role": "system", "content": "Answer shortly."},
        {"role": "user", "content": "Question:\nWhat is a stretto?"},
    ]
    assert "stop" not in body


NO_CHAT = [
    refused(404, "Not Found"),
    refused(404, "This is not a chat model and thus not supported in the v1/chat/completions endpoint."),
    refused(400, "default chat template is no longer allowed, so you must provide a chat template"),
    refused(400, '"nomic" does not support chat'),
]


@pytest.mark.parametrize("refusal", NO_CHAT)
def test_a_server_without_a_chat_gets_the_plain_form_from_the_first_refusal_on(
    refusal: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    ends, bodies = asked(lambda body: refusal if "messages" in body else HELLO, rounds=3)
    assert values(ends) == ["Hello"] * 3
    assert ["messages" in body for body in bodies] == [True, False, False, False]
    assert {body["prompt"] for body in bodies[1:]} == {PLAIN}
    assert all(tuple(body["stop"]) == PLAIN_STOP for body in bodies[1:])
    (record,) = (one for one in caplog.records if "has no chat" in one.getMessage())
    assert MODEL in record.getMessage()


def test_requests_at_once_find_out_together() -> None:
    refusal = refused(404, "Not Found")
    ends, bodies = asked(lambda body: refusal if "messages" in body else HELLO, num_at_once=5, rounds=2)
    assert values(ends) == ["Hello"] * 10
    assert sum("messages" in body for body in bodies) <= 5
    assert len(bodies) <= 15


def test_a_server_that_has_chatted_keeps_its_chat() -> None:
    replies = iter([HELLO, refused(404, "Not Found"), HELLO])
    ends, bodies = asked(lambda _: next(replies), rounds=3)
    assert [isinstance(end, Failed) for end in ends] == [False, True, False]
    assert all("messages" in body for body in bodies)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_what_the_user_says_is_done(api: str) -> None:
    ends, (body,) = asked(lambda _: refused(404, "Not Found"), api=api, max_retries=0)
    assert isinstance(ends[0], Failed)
    assert ("messages" in body) == (api == "chat")


def test_a_refusal_for_another_reason_is_the_answer() -> None:
    ends, bodies = asked(lambda _: refused(400, "the context is too long"))
    assert isinstance(ends[0], Failed)
    assert len(bodies) == 1


@pytest.mark.parametrize("api", ["auto", "chat"])
@pytest.mark.parametrize("words", ["System role not supported", "the chat template: no system message"])
def test_a_template_without_system_messages_gets_them_in_the_users(api: str, words: str) -> None:
    def answer(body: Mapping[str, Any]) -> Reply:
        return refused(400, words) if body["messages"][0]["role"] == "system" else HELLO

    ends, bodies = asked(answer, rounds=2, api=api)
    assert values(ends) == ["Hello"] * 2
    assert len(bodies) == 3
    text = "Answer shortly.\n\nQuestion:\nWhat is a stretto?"
    assert [body["messages"] for body in bodies[1:]] == [[{"role": "user", "content": text}]] * 2


@pytest.mark.parametrize("has_template", [True, False])
def test_token_ids_have_the_tokenizers_template(
    has_template: bool, tiny_checkpoint: Path, tiny_chat_checkpoint: Path
) -> None:
    folder = tiny_chat_checkpoint if has_template else tiny_checkpoint
    ends, (body,) = asked(lambda _: HELLO, tokenizer=str(folder))
    ours = PromptTokenizer(folder)
    assert body["prompt"] == ours.encode(PROMPT) + ours.end_of(PROMPT)
    assert tuple(body.get("stop", ())) == (() if has_template else PLAIN_STOP)
    assert values(ends) == ["Hello"]


def test_the_end_of_a_turn_is_sent_where_it_is_not_the_eos_token(
    tiny_chat_checkpoint: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_chat_checkpoint / name).read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": BOS}))
    ours = PromptTokenizer(tmp_path)
    for folder, turns in ((tmp_path, ours.ending - {ours.eos_token_id}), (tiny_chat_checkpoint, set())):
        _, (body,) = asked(lambda _: HELLO, tokenizer=str(folder))
        assert set(body.get("stop_token_ids", ())) == turns
    assert len(ours.ending) == 2
