"""How prompts go to a server: as text, as token ids, as a message; and what is asked of it first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.openai_stub import MODEL, OpenAIStub, Reply
from support.tiny_checkpoint import BOS, EOS, build_tokenizer

from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.model.errors import BadReply, CapacityError, ConfigError, StrettoError
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask
from stretto.model.values import Prompt, Segment

pytest_plugins = ("support.llm_fixtures",)

PROMPT = (Segment("Say: "), Segment(f"hello{EOS}", "text"), Segment(f"{EOS}\nNow"))
HELLO = Reply((" Hello",))
TOKENIZER = build_tokenizer()

Pages = Mapping[str, Callable[[Mapping[str, Any]], str]]


def alike(body: Mapping[str, Any]) -> str:
    """Return the answer of a server's `/tokenize` that has the tiny checkpoint."""
    return json.dumps({"tokens": TOKENIZER.encode(body["prompt"], add_special_tokens=False).ids})


def otherwise(body: Mapping[str, Any]) -> str:
    return json.dumps({"tokens": [1, 2, 3]})


def generate(
    prompt: Prompt = PROMPT,
    reply: Reply = HELLO,
    *,
    model: Mapping[str, object] | None = None,
    pages: Pages | None = None,
    decode: Decode | None = None,
    **config: Any,
) -> tuple[LLMEvent, Any]:
    """Return how a task ended, and the body of its request if one came."""

    async def main() -> tuple[LLMEvent, Any]:
        events: list[LLMEvent] = []
        async with OpenAIStub(lambda _: reply, model=model, pages=pages) as stub:
            server = OpenAIServer(
                OpenAIServerConfig(stub.url, **{"api": "completions", "backoff_s": 0.001, **config})
            )
            await server.generate(LLMTask(1, "q", "answer", prompt, decode or Decode()), events.append)
            await server.aclose()
        return events[-1], stub.requests[-1] if stub.requests else None

    return asyncio.run(main())


def error_of(ending: LLMEvent) -> StrettoError:
    assert isinstance(ending, Failed)
    return ending.error


def test_ids_are_those_of_the_in_process_engines(tiny_checkpoint: Path) -> None:
    ending, request = generate(tokenizer=str(tiny_checkpoint))
    assert isinstance(ending, Done)
    assert request["prompt"] == PromptTokenizer(tiny_checkpoint).encode(PROMPT)
    bos, eos = (TOKENIZER.token_to_id(token) for token in (BOS, EOS))
    assert request["prompt"][0] == bos
    assert request["prompt"].count(eos) == 1  # the constant's; the document's is harmless text


def test_ids_have_the_chat_template_around_them(tiny_chat_checkpoint: Path) -> None:
    _, request = generate(tokenizer=str(tiny_chat_checkpoint))
    tokenizer = PromptTokenizer(tiny_chat_checkpoint)
    assert request["prompt"] == tokenizer.encode(PROMPT) + tokenizer.suffix
    assert tokenizer.suffix


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        ({"POST /tokenize": alike}, list),
        ({"POST /tokenize": otherwise}, str),
        ({"POST /tokenize": lambda _: "no JSON"}, str),
        ({"POST /tokenize": lambda _: '{"tokens": []}'}, str),
        ({"POST /tokenize": lambda _: "[]"}, str),
        (None, str),
    ],
)
def test_ids_are_sent_to_a_server_that_names_its_folder_and_tokenises_alike(
    tiny_checkpoint: Path, pages: Pages | None, kind: type
) -> None:
    _, request = generate(model={"root": str(tiny_checkpoint)}, pages=pages)
    assert isinstance(request["prompt"], kind)


@pytest.mark.parametrize("root", ["some/model", "/no/such/folder", None, 5])
def test_text_is_sent_where_the_servers_folder_is_not_here(root: object) -> None:
    _, request = generate(model={"root": root}, pages={"POST /tokenize": alike})
    assert request["prompt"] == "".join(segment.text for segment in PROMPT)


def test_text_is_sent_on_demand(tiny_checkpoint: Path) -> None:
    model = {"root": str(tiny_checkpoint)}
    _, request = generate(model=model, pages={"POST /tokenize": alike}, tokenizer="none")
    assert isinstance(request["prompt"], str)


def test_a_tokenizer_has_to_be_the_servers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    ending, request = generate(tokenizer=str(tiny_checkpoint), pages={"POST /tokenize": otherwise})
    assert request is None
    assert isinstance(error_of(ending), ConfigError)
    assert "is not the one of 'stub-model'" in str(error_of(ending))
    ending, request = generate(tokenizer=str(tmp_path))
    assert request is None
    assert isinstance(error_of(ending), ConfigError)
    assert str(tmp_path) in str(error_of(ending))


def test_a_server_that_refuses_ids_is_told_how_to_get_text(tiny_checkpoint: Path) -> None:
    ending, _ = generate(reply=Reply(status=400), tokenizer=str(tiny_checkpoint))
    assert isinstance(error_of(ending), BadReply)
    assert "told to fail (sent as token ids; tokenizer 'none' sends text)" in str(error_of(ending))
    ending, _ = generate(reply=Reply(status=400))
    assert "ids" not in str(error_of(ending))


def test_a_prompt_beyond_the_context_is_not_sent(tiny_checkpoint: Path) -> None:
    num_tokens = len(PromptTokenizer(tiny_checkpoint).encode(PROMPT))
    ask = partial(generate, tokenizer=str(tiny_checkpoint), decode=Decode(max_tokens=10))
    ending, request = ask(model={"max_model_len": num_tokens + 9})
    assert isinstance(error_of(ending), CapacityError)
    assert request is None
    ending, request = ask(model={"max_model_len": num_tokens + 10})
    assert isinstance(ending, Done)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_limit_above_the_context_is_lowered_for_a_text(api: str) -> None:
    ask = partial(generate, tokenizer="none", api=api, model={"max_model_len": 100})
    _, request = ask(decode=Decode(max_tokens=4096, fits_context=True))
    assert request["max_tokens"] == 100
    _, request = ask(decode=Decode(max_tokens=4096))
    assert request["max_tokens"] == 4096  # the server refuses it


def test_chat_is_one_message_of_the_user() -> None:
    ending, request = generate(reply=Reply((" Hello", " you"), finish="stop"), api="chat")
    assert isinstance(ending, Done)
    assert ending.value == "Hello you"
    assert ending.usage.num_output_tokens == 2
    text = "".join(segment.text for segment in PROMPT)
    assert request["messages"] == [{"role": "user", "content": text}]
    assert "prompt" not in request


def test_thoughts_of_a_chat_are_no_part_of_its_answer() -> None:
    deltas: list[dict[str, object]] = [{"reasoning_content": "hm"}, {"content": None}, {"content": "so"}]
    events = [f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas]
    raw = "".join([*events, "data: [DONE]\n\n"]).encode()
    ending, _ = generate(reply=Reply(raw=raw, headers={"Content-Type": "text/event-stream"}), api="chat")
    assert isinstance(ending, Done)
    assert ending.value == "so"


@pytest.mark.parametrize(
    "listing", ["no JSON", "[]", "{}", '{"data": []}', '{"data": [5]}', '{"data": [{}]}']
)
def test_a_server_that_lists_no_model_has_to_be_given_one(listing: str) -> None:
    ending, request = generate(pages={"GET /v1/models": lambda _: listing})
    assert request is None
    assert isinstance(error_of(ending), BadReply)
    assert "no model" in str(error_of(ending)) or "JSON" in str(error_of(ending))


def test_a_model_that_is_named_need_not_be_listed() -> None:
    async def main() -> list[Any]:
        async with OpenAIStub(lambda _: HELLO, pages={"GET /v1/models": lambda _: "nothing"}) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url, model="mine"))
            await server.generate(LLMTask(1, "q", "answer", PROMPT, Decode()), lambda _: None)
            await server.aclose()
        return [request["model"] for request in stub.requests]

    assert asyncio.run(main()) == ["mine"]
    assert generate()[1]["model"] == MODEL
