"""Answers of servers with habits of their own are read right, and their refusals are learned from."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from support.plain_server import Answered, PlainServer, as_events, as_json, listing

from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.model.errors import BadReply, BadServer, ConfigError, EngineUnavailable, StrettoError
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Objective, Piece, Usage
from stretto.model.values import Segment
from stretto.wire.paths import Api

LIST = Decode(items="json_list")
THOUGHTS = 'I could say ["no"].\n1. or this\n'
Body = Mapping[str, Any]


def ends(
    answer: Callable[[Body], Answered],
    decodes: Sequence[Decode] = (Decode(),),
    *,
    is_read: bool = True,
    model: str = "m",
    objective: Objective = "throughput",
    **config: Any,
) -> tuple[list[Done | StrettoError], list[str], list[Body]]:
    """Return the ends of tasks that a server is given one after the other, the pieces of each joined, and the
    bodies of the requests.
    """
    bodies: list[Body] = []

    def serve(what: str, body: Body) -> Answered:
        if what == "GET /v1/models":
            return listing(model)
        if "completions" not in what:
            return as_json({"detail": "Not Found"}, 404)
        bodies.append(body)
        return answer(body)

    async def main() -> tuple[list[Done | StrettoError], list[str], list[Body]]:
        found: list[Done | StrettoError] = []
        texts: list[str] = []
        async with PlainServer(serve) as server:
            llm = OpenAIServer(
                OpenAIServerConfig(server.url, **{"api": "completions", "warms_prefixes": False, **config})
            )
            for number, decode in enumerate(decodes):
                events: list[LLMEvent] = []
                silence_s = 0.0 if is_read else 60.0
                prompt = (Segment("Q:"),)
                await llm.generate(
                    LLMTask(number, "q", "s", prompt, decode, silence_s=silence_s, objective=objective),
                    events.append,
                )
                last = events[-1]
                assert isinstance(last, Done | Failed)
                found.append(last if isinstance(last, Done) else last.error)
                texts.append("|".join(event.value for event in events if isinstance(event, Piece)))
            await llm.aclose()
        return found, texts, bodies

    return asyncio.run(main())


def value(end: Done | StrettoError) -> tuple[object, str]:
    assert isinstance(end, Done), end
    return end.value, end.finish


def chunk(text: object = None, finish: str | None = None, **more: object) -> Body:
    """Return an event that both APIs' readers take."""
    return {"choices": [{"delta": {"content": text, **more}, "text": text or "", "finish_reason": finish}]}


def chunks(*texts: str, finish: str = "stop") -> Answered:
    return as_events(*map(chunk, texts), chunk(finish=finish))


def always(answered: Answered) -> Callable[[Body], Answered]:
    return lambda _: answered


APIS: tuple[Api, ...] = ("completions", "chat")


@pytest.mark.parametrize("api", APIS)
def test_thoughts_are_dropped_wherever_chunks_end(api: Api) -> None:
    text = f"<think>\n{THOUGHTS}</think>\n\nFour."
    for size in (1, 4, 1000):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        (end,), (pieces,), _ = ends(always(chunks(*parts)), api=api)
        assert value(end) == ("Four.", "stop")
        assert pieces.replace("|", "") == "Four."


@pytest.mark.parametrize(("api", "model"), [("completions", "m"), ("chat", "m"), ("chat", "DeepSeek-R1")])
def test_a_server_that_puts_the_opening_tag_into_the_prompt_is_learned(api: Api, model: str) -> None:
    """A text that is read as it comes is held back at first only where the model is known to think."""

    def answer(body: Body) -> Answered:
        parts = "I think", f" of {THOUGHTS}", "</think>\n\n", "Fo", "ur."
        if body.get("stream"):
            return chunks(*parts)
        text = "".join(parts)
        return as_json({"choices": [{"message": {"content": text}, "text": text, "finish_reason": "stop"}]})

    found, pieces, _ = ends(answer, [Decode()] * 2, is_read=False, api=api, model=model)
    assert [value(end) for end in found] == [("Four.", "stop")] * 2
    found, pieces, _ = ends(answer, [Decode()] * 2, api=api, model=model)
    assert value(found[1]) == ("Four.", "stop")
    assert pieces[1].replace("|", "") == "Four."
    assert (value(found[0]) == ("Four.", "stop")) == (model == "DeepSeek-R1")


def test_a_list_in_the_thoughts_of_a_chat_is_no_list() -> None:
    found, pieces, _ = ends(
        lambda _: chunks(THOUGHTS, "</think>\n\n", '["yes", ', '"both"]'), [LIST, LIST], api="chat"
    )
    assert [value(end) for end in found] == [(["yes", "both"], "stop")] * 2
    assert pieces == ["yes|both"] * 2


def test_a_chat_without_thoughts_is_streamed() -> None:
    _, pieces, _ = ends(lambda _: chunks("Fo", "ur."), [Decode()] * 2, api="chat")
    assert pieces == ["Fo|ur."] * 2
    _, pieces, _ = ends(lambda _: chunks("Fo", "ur."), [Decode()] * 2, api="chat", model="a-thinking-model")
    assert pieces == ["Four.", "Fo|ur."]  # the first reply has told


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_that_a_server_tells_apart_are_not_the_answer(name: str) -> None:
    def answer(*last: Body) -> Callable[[Body], Answered]:
        return lambda _: as_events(chunk(**{name: 'Let me ["no"]'}), *last)

    (end,), _, _ = ends(answer(chunk("Four."), chunk(finish="stop")), api="chat")
    assert value(end) == ("Four.", "stop")
    (end,), _, _ = ends(answer(chunk(finish="length")), api="chat")
    assert value(end) == ("", "thoughts")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("said", "finish"),
    [
        ("stop", "stop"),
        ("eos_token", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("content_filter: SAFETY", "content_filter"),
    ],
)
def test_how_an_answer_has_ended_is_kept(api: Api, said: str, finish: str) -> None:
    (end,), _, _ = ends(lambda _: chunks("Four", finish=said), api=api)
    assert value(end) == ("Four", finish)
    body = {"choices": [{"message": {"content": "Four"}, "text": "Four", "finish_reason": said}]}
    (end,), _, _ = ends(lambda _: as_json(body), is_read=False, token_s=1e-6, api=api)
    assert value(end) == ("Four", finish)


def test_an_answer_that_ends_itself_is_not_cut() -> None:
    (end,), _, _ = ends(lambda _: chunks('["a", "b"]', finish="length"), [LIST])
    assert value(end) == (["a", "b"], "stop")


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (b'error: {"code":500,"message":"too much"}\n\n', EngineUnavailable),
        (b'error: {"code":400,"message":"too much"}\n\n', BadReply),
        (b'event: error\ndata: {"message": "too much", "type": "overloaded_error"}\n\n', EngineUnavailable),
        (b"event: error\ndata: too much\n\n", BadReply),
        ({"error": {"message": "too much", "code": "503"}}, EngineUnavailable),
        ({"error": {"message": "too much", "type": "server_error", "code": None}}, EngineUnavailable),
        ({"error": "too much"}, BadReply),
    ],
)
@pytest.mark.parametrize("before", [(), (chunk("Fo"),)])
def test_a_failure_within_a_stream_is_an_error(
    failure: object, kind: type[StrettoError], before: Sequence[Body]
) -> None:
    (end,), _, _ = ends(lambda _: as_events(*before, failure))
    assert type(end) is kind
    assert "too much" in str(end)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_failure_with_status_200_is_an_error(is_read: bool) -> None:
    for code, kind in ((400, BadReply), (500, EngineUnavailable)):
        answered = as_json({"error": {"message": "too much", "code": code}})
        (end,), _, _ = ends(always(answered), is_read=is_read, token_s=1e-6)
        assert type(end) is kind
        assert "too much" in str(end)


COUNTS = {"prompt_tokens": 10, "completion_tokens": 5}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("last", "usage"),
    [
        ({"usage": COUNTS}, Usage(10, 0, 5)),
        ({"choices": None, "usage": COUNTS}, Usage(10, 0, 5)),
        ({"choices": [], "usage": {"prompt_tokens": 10.0, "completion_tokens": 5.0}}, Usage(10, 0, 5)),
        ({"choices": [], "usage": {**COUNTS, "prompt_tokens_details": []}}, Usage(10, 0, 5)),
        ({"choices": [], "usage": {"prompt_tokens": 10, "total_tokens": 10}}, Usage(0, 0, 2)),
        ({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": None}}, Usage(0, 0, 2)),
        ({"choices": [], "usage": None}, Usage(0, 0, 2)),
        ({"x": 1}, Usage(0, 0, 2)),
    ],
)
def test_an_answer_is_kept_whatever_comes_last(api: Api, last: Body, usage: Usage) -> None:
    (end,), _, _ = ends(lambda _: as_events(chunk("Fo"), chunk("ur."), chunk(finish="stop"), last), api=api)
    assert value(end) == ("Four.", "stop")
    assert isinstance(end, Done)
    assert end.usage == usage


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "Four."}], "Four."),
        ([{"type": "text", "text": "Fo"}, "ur", {"type": "text", "text": "."}], "Four."),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, "Four."], "Four."),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, "Four."], "Four."),
        ([{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "Four."}], "Four."),
        ([], ""),
    ],
)
def test_content_may_come_in_parts(content: object, text: str) -> None:
    (end,), _, _ = ends(lambda _: as_events(chunk(content), chunk("", "stop")), api="chat")
    assert value(end)[0] == text
    whole = as_json({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})
    (end,), _, _ = ends(lambda _: whole, is_read=False, token_s=1e-6, api="chat")
    assert value(end)[0] == text


def test_a_server_that_always_streams_is_read() -> None:
    (end,), _, bodies = ends(lambda _: chunks("Fo", "ur.", finish="length"), is_read=False, token_s=1e-6)
    assert value(end) == ("Four.", "length")
    assert not bodies[0].get("stream")


def test_content_of_no_known_form_is_a_bad_reply() -> None:
    for content in (5, {"text": "a"}, [5], [{"type": "text"}], [{"no": "type"}]):
        (end,), _, _ = ends(always(as_events(chunk(content))), api="chat")
        assert type(end) is BadServer


def refusing(name: str, body: Body, *, status: int = 400) -> Answered | None:
    if name not in body:
        return None
    message = f"Unsupported parameter: '{name}' is not supported with this model."
    if name == "max_tokens":
        message += " Use 'max_completion_tokens' instead."
    return as_json({"error": {"message": message, "param": name}}, status)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "names",
    [("temperature",), ("max_tokens",), ("stream_options", "stop"), ("temperature", "max_tokens", "seed")],
)
def test_fields_that_a_server_refuses_are_left_out_from_then_on(
    api: Api, names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    def answer(body: Body) -> Answered:
        return next((said for name in names if (said := refusing(name, body))), chunks("Four.", "|Five"))

    with caplog.at_level(logging.WARNING):
        found, _, bodies = ends(answer, [Decode(stop=("|",), seed=7, max_tokens=9)] * 3, api=api)
    assert [value(end) for end in found] == [("Four.", "stop")] * 3
    assert len(bodies) == len(names) + 3
    assert not set(names) & bodies[-1].keys()
    assert bodies[-1].get("max_completion_tokens") == (9 if "max_tokens" in names else None)
    assert len([one for one in caplog.records if "refuses" in one.message]) == 1


def refusing_to_count(refused: Answered, body: Body) -> Answered:
    return refused if "stream_options" in body else chunks("Four.")


def test_refusals_of_other_forms_are_understood() -> None:
    forms = (
        (422, {"message": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra"}]}),
        (422, {"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}),
        (400, {"error": {"message": "not permitted", "param": "stream_options"}}),
        (400, {"message": "unsupported stream_options"}),
    )
    for status, body in forms:
        refused = as_json(body, status)
        found, _, _ = ends(partial(refusing_to_count, refused))
        assert value(found[0]) == ("Four.", "stop")


def test_a_refusal_for_another_reason_is_told_at_once() -> None:
    for message in ("your prompt has no stop", "temperature sensors are not discussed here", "no seed money"):
        refused = as_json({"error": {"message": message}}, 400)
        (end,), _, bodies = ends(always(refused), [Decode(stop=("|",))])
        assert type(end) is BadReply
        assert message in str(end)
        assert len(bodies) == 1


def test_a_server_that_refuses_everything_is_asked_once_for_each_field() -> None:
    words = "'temperature', 'seed', 'stop', 'stream_options', 'max_tokens', 'max_completion_tokens'"
    refused = as_json({"error": {"message": f"Unsupported: {words}"}}, 400)
    found, _, bodies = ends(lambda _: refused, [Decode(stop=("|",), temperature=1.0, seed=3)] * 2)
    assert all(isinstance(end, BadReply) for end in found)
    assert len(bodies) == 2 * 6  # nothing has helped, so nothing is remembered


def test_settings_name_fields_that_are_not_sent() -> None:
    _, _, bodies = ends(
        lambda _: chunks("Four."), api="chat", omit=("temperature",), max_tokens_field="max_completion_tokens"
    )
    assert not {"temperature", "max_tokens"} & bodies[0].keys()
    assert bodies[0]["max_completion_tokens"] == 128
    assert json.dumps(bodies[0])
    for wrong in ({"omit": ("messages",)}, {"omit": ("model", "stream")}, {"max_tokens_field": "tokens"}):
        with pytest.raises(ConfigError):
            OpenAIServerConfig("http://h", **wrong)


@pytest.mark.parametrize(
    ("api", "model", "is_told"),
    [
        ("completions", "meta-llama/Llama-3.1-8B-Instruct", True),
        ("completions", "gemma-3-4b-it", True),
        ("completions", "Llama-2-7b-chat-hf", True),
        ("completions", "Llama-3.1-8B", False),
        ("completions", "white-rabbit", False),
        ("chat", "Llama-2-7b-chat-hf", False),
    ],
)
def test_a_model_for_chats_that_gets_plain_prompts_is_told_once(
    api: Api, model: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ends(lambda _: chunks("Four."), [Decode()] * 2, api=api, model=model)
    assert len([one for one in caplog.records if "trained for chats" in one.getMessage()]) == is_told


@pytest.mark.parametrize("words", ["unsupported field service_tier", "Invalid service_tier argument"])
def test_offline_work_is_told_to_the_server_until_it_refuses_the_field(words: str) -> None:
    """It is told by OpenAI's tier `flex`, which a door of this package serves with what others leave."""

    def answer(body: Body) -> Answered:
        if "service_tier" in body:
            return as_json({"error": {"message": words}}, 400)
        return chunks("a")

    told, _, bodies = ends(answer, [Decode(), Decode()], objective="offline")
    assert [value(one)[0] for one in told] == ["a", "a"]
    assert [body.get("service_tier") for body in bodies] == ["flex", None, None]
    _, _, (usual,) = ends(always(chunks("a")))
    assert "service_tier" not in usual
