"""The server adapter against real sockets, with every fault a server can show."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.openai_stub import EVENT_STREAM, MODEL, OpenAIStub, Reply

from stretto.engines.chat_markup import RAW
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.openai_server.asking import priority_of
from stretto.model.errors import (
    BadReply,
    BadServer,
    ConfigError,
    EngineBusy,
    EngineTimeout,
    EngineUnavailable,
    EngineUnreachable,
    NotFound,
    StrettoError,
)
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece, Started
from stretto.model.values import Prompt, Segment
from stretto.wire.errors import unknown_model

OK = Reply((" Hello", " wor", "ld", "\n"))
LIST = Decode(items="json_list", max_items=2)


def task(decode: Decode | None) -> LLMTask:
    return LLMTask(1, "q", "answer", (Segment("Say: "), Segment("hello", "text")), decode)


def generate(
    replies: Iterable[Reply],
    decode: Decode | None = None,
    timeout_s: float = 5.0,
    rank: tuple[float, ...] = (),
    *,
    others_serve: bool = False,
    prompt: Prompt | None = None,
    **config: Any,
) -> tuple[list[LLMEvent], OpenAIStub]:
    """Return the events of one task whose requests are answered by `replies` in turn."""

    async def main() -> tuple[list[LLMEvent], OpenAIStub]:
        turns = iter(replies)
        events: list[LLMEvent] = []
        async with OpenAIStub(lambda _: next(turns)) as stub:
            server = OpenAIServer(
                OpenAIServerConfig(
                    stub.url,
                    **{"api": "completions", "timeout_s": timeout_s, "backoff_s": 0.001, **config},
                )
            )
            asked = replace(task(decode or Decode()), others_serve=others_serve)
            asked = asked if prompt is None else replace(asked, prompt=prompt)
            await server.generate(asked, events.append, rank)
            if isinstance(events[-1], Done) and decode == LIST:
                await asyncio.wait_for(stub.aborted.wait(), 60)
            await server.aclose()
        return events, stub

    return asyncio.run(main())


def failure(events: list[LLMEvent]) -> StrettoError:
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Failed)
    assert events[-1].error.step == "answer"
    return events[-1].error


def test_a_rank_goes_along_only_where_the_server_takes_priorities() -> None:
    for priorities in (False, True):
        _, stub = generate([OK], rank=(1.5, -2.0, 7.0), priorities=priorities)
        (request,) = stub.requests
        assert request.get("priority") == (priority_of((1.5, -2.0)) if priorities else None)


def test_streams_text_and_counts() -> None:
    events, stub = generate([OK])
    assert events[:3] == [Started(1), Piece(1, "Hello"), Piece(1, " wor")]
    assert isinstance(events[-1], Done)
    assert events[-1].value == "Hello world"
    assert events[-1].usage.num_prompt_tokens == 7
    (request,) = stub.requests
    assert request["model"] == MODEL
    assert request["prompt"] == "Say: hello"


def test_only_settings_that_differ_are_sent_by_their_names() -> None:
    _, stub = generate([OK], Decode(top_p=0.5, top_k=3, stop_tokens=(7, 8), ignore_eos=True))
    (request,) = stub.requests
    assert (request["top_p"], request["top_k"], request["ignore_eos"]) == (0.5, 3, True)
    assert request["stop_token_ids"] == [7, 8]
    assert (
        not {"min_p", "min_tokens", "repetition_penalty", "presence_penalty", "stop_tokens"} & request.keys()
    )


def test_the_form_of_the_output_is_sent() -> None:
    _, stub = generate([OK], Decode(json_schema='{"type": "array"}'))
    (request,) = stub.requests
    assert request["response_format"]["json_schema"]["schema"] == {"type": "array"}
    _, stub = generate([OK], Decode(json_schema='{"type": "array"}', schema_if_able=True))
    assert "response_format" not in stub.requests[0]
    _, stub = generate([OK], Decode(regex="[ab]+"))
    (request,) = stub.requests
    assert request["structured_outputs"] == {"regex": "[ab]+"}
    events, stub = generate([OK], Decode(json_schema="{"))
    assert isinstance(failure(events), ConfigError)
    assert stub.requests == []


def test_what_the_server_could_not_answer_is_refused() -> None:
    events, stub = generate([OK], Decode(logprobs=2))
    error = failure(events)
    assert isinstance(error, ConfigError)
    assert "logprobs" in str(error)
    assert stub.requests == []


@pytest.mark.parametrize(
    ("decode", "sent"),
    [(Decode(stop=("!",)), ["!", "\nQuestion:"]), (LIST, None), (Decode(), ["\nQuestion:"])],
)
def test_texts_stop_at_the_strings_of_the_server(decode: Decode, sent: list[str] | None) -> None:
    replies = [
        Reply(('["a", ', '"b"]'), "hang") if decode == LIST else Reply((" so.", "\nQues", "tion: what"))
    ]
    events, stub = generate(replies, decode, stop=("\nQuestion:",))
    assert stub.requests[0].get("stop") == sent
    assert isinstance(events[-1], Done)
    assert events[-1].value == (["a", "b"] if decode == LIST else "so.")


def test_stream_is_closed_when_the_list_is_complete() -> None:
    events, _ = generate([Reply(('["a", ', '"b"', "and so on"), ending="hang")], LIST)
    assert events[1:3] == [Piece(1, "a"), Piece(1, "b")]
    assert isinstance(events[-1], Done)
    assert events[-1].value == ["a", "b"]


def test_line_breaks_of_unicode_do_not_cut_an_event() -> None:
    events, _ = generate([Reply(("a\u2028b\x85c",))])
    assert isinstance(events[-1], Done)
    assert events[-1].value == "a\u2028b\x85c"


@pytest.mark.parametrize("status", [429, 500, 503, 0])
def test_busy_server_and_one_that_drops_the_connection_are_asked_again(status: int) -> None:
    events, stub = generate([Reply(status=status), Reply(status=status), OK])
    assert isinstance(events[-1], Done)
    assert len(stub.requests) == 3


@pytest.mark.parametrize(
    ("status", "header", "rest_s"),
    [(429, "7", 7.0), (503, "3600", 3600.0), (429, "soon", 0.0), (500, "7", None)],
)
def test_a_server_that_refuses_is_not_asked_again_while_others_serve(
    status: int, header: str, rest_s: float | None
) -> None:
    """The scheduler sends the task elsewhere, and leaves the server alone for as long as it says."""
    refused = Reply(status=status, headers={"Retry-After": header})
    events, stub = generate([refused, OK], others_serve=True)
    error = failure(events)
    assert isinstance(error, EngineUnavailable)
    assert (error.retry_after_s if isinstance(error, EngineBusy) else None) == rest_s
    assert len(stub.requests) == 1


@pytest.mark.parametrize("kind", ["text/html", "text/plain", "application/octet-stream"])
def test_a_page_in_place_of_an_answer_is_the_fault_of_the_server(kind: str) -> None:
    """A proxy whose server is gone may answer at once with a page: it would attract all requests."""
    page = Reply(raw=b"Welcome", headers={"Content-Type": kind})
    for others_serve in (True, False):
        events, _ = generate([page, OK], others_serve=others_serve)
        assert type(failure(events)) is BadServer


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        *((Reply(status=status), BadServer) for status in (401, 403, 405, 301)),
        (Reply(status=404), NotFound),
        *((Reply(status=status), BadReply) for status in (400, 413, 422)),
        (Reply(raw=b"data: {not json\n\n", headers=EVENT_STREAM), BadServer),
        (Reply(raw=b'data: {"error": {"code": 404}}\n\n', headers=EVENT_STREAM), BadServer),
        (Reply(raw=b'data: {"error": {"code": 400}}\n\n', headers=EVENT_STREAM), BadReply),
        (Reply(raw=b'data: {"error": "no"}\n\n', headers=EVENT_STREAM), BadReply),
    ],
)
def test_errors_tell_a_servers_fault_from_that_of_a_request(reply: Reply, error: type[BadReply]) -> None:
    events, _ = generate([reply])
    assert type(failure(events)) is error


def test_a_connection_that_had_idled_is_made_anew_though_others_serve() -> None:
    events, stub = generate([Reply(status=0), OK], others_serve=True)
    assert isinstance(events[-1], Done)
    events, stub = generate([Reply(status=0), Reply(status=0), OK], others_serve=True)
    assert isinstance(failure(events), EngineUnavailable)
    assert len(stub.requests) == 2


@pytest.mark.parametrize(
    ("header", "waited_s"),
    [
        ("3", 3.0),
        ("0.25", 0.25),
        ("100000", 10.0),
        ("-1", 0.001),
        ("0", 0.001),
        ("nan", 0.001),
        ("soon", 0.001),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.001),
        ("Wed, 21 Oct 2115 07:28:00 GMT", 10.0),
    ],
)
def test_server_says_when_to_ask_again_within_limits(
    header: str, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("stretto.engines.openai_server.http.asyncio.sleep", sleep)
    monkeypatch.setattr("stretto.engines.openai_server.http.random.uniform", lambda low, high: high)
    generate([Reply(status=429, headers={"Retry-After": header}), OK])
    assert [seconds for seconds in waits if seconds or not waited_s][:1] == [waited_s]


def test_clients_that_were_refused_together_come_back_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds:
            waits.append(seconds)

    monkeypatch.setattr("stretto.engines.openai_server.http.asyncio.sleep", sleep)
    for _ in range(8):
        generate([Reply(status=503), OK])
    assert len(set(waits)) == 8
    assert all(0.0005 <= seconds <= 0.001 for seconds in waits)


def test_a_backoff_holds_no_connection_place() -> None:
    """The second request goes through the only place while the first one waits for an hour."""

    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []

        def answer(request: Mapping[str, Any]) -> Reply:
            return Reply(status=503, headers={"Retry-After": "3600"}) if request["prompt"] == "busy" else OK

        async with OpenAIStub(answer) as stub:
            config = OpenAIServerConfig(
                stub.url, model=MODEL, api="completions", max_connections=1, max_backoff_s=3600
            )
            server = OpenAIServer(config)
            first = LLMTask(1, "q", "answer", (Segment("busy"),), Decode())
            second = LLMTask(2, "q", "answer", (Segment("x"),), Decode())
            waiting = asyncio.create_task(server.generate(first, events.append))
            await server.generate(second, events.append)
            waiting.cancel()
            await asyncio.wait([waiting])
            third = LLMTask(3, "q", "answer", (Segment("x"),), Decode())
            await server.generate(third, events.append)
            await server.aclose()
        return events

    assert [event.task for event in asyncio.run(main()) if isinstance(event, Done)] == [2, 3]


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_finish_reason_and_a_clean_close_are_an_end(finish: str) -> None:
    (*_, done), _ = generate([Reply(("so",), "stop", finish=finish)])
    assert isinstance(done, Done)
    assert done.value == "so"


def test_a_close_without_a_finish_reason_is_no_end() -> None:
    chunk = b'data: {"choices": [{"index": 0, "text": "so", "finish_reason": null}]}\n\n'
    events, _ = generate([Reply(raw=chunk, headers=EVENT_STREAM)] * 5)
    assert isinstance(failure(events), EngineUnavailable)


@pytest.mark.parametrize("raw", [b"data: [DONE]\n\n", b'data: {"choices": []}\n\ndata: [DONE]\n\n'])
def test_an_answer_without_a_choice_is_a_bad_reply(raw: bytes) -> None:
    events, _ = generate([Reply(raw=raw, headers=EVENT_STREAM)])
    assert isinstance(failure(events), BadReply)
    assert "no choice" in str(failure(events))


@pytest.mark.parametrize("role", [None, RAW])
def test_the_name_of_the_model_is_asked_again_when_the_server_does_not_know_it(role: str | None) -> None:
    """The server was restarted with another model."""
    names = ["old"]

    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []

        def answer(request: Mapping[str, Any]) -> Reply:
            if request["model"] == names[0]:
                return OK
            return Reply.refusing(unknown_model(request["model"], names).answer)

        models = {"GET /v1/models": lambda _: json.dumps({"data": [{"id": names[0]}]})}
        async with OpenAIStub(answer, pages=models) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url, warms_prefixes=False))
            for number, name in enumerate(("old", "new", "new")):
                names[0] = name
                prompt = (Segment("x", role=role),)
                await server.generate(LLMTask(number, "q", "answer", prompt, Decode()), events.append)
            names[0] = "gone"
            server_of_old = OpenAIServer(OpenAIServerConfig(stub.url, model="old", warms_prefixes=False))
            await server_of_old.generate(LLMTask(3, "q", "answer", prompt, Decode()), events.append)
            await server.aclose()
            await server_of_old.aclose()
        return events

    events = asyncio.run(main())
    assert [event.task for event in events if isinstance(event, Done)] == [0, 1, 2]
    assert isinstance(failure(events[-2:]), NotFound)


def test_a_raw_prompt_is_sent_once_to_a_server_that_only_chats() -> None:
    events, stub = generate([Reply(status=404)] * 5, prompt=(Segment("x", role=RAW),), api="auto")
    assert isinstance(failure(events), NotFound)
    assert len(stub.requests) == 1


def test_server_that_stays_broken_is_unavailable() -> None:
    events, stub = generate([Reply(status=500)] * 5)
    assert isinstance(failure(events), EngineUnavailable)
    assert len(stub.requests) == 3


def test_refusal_is_a_bad_reply_with_its_reason() -> None:
    events, stub = generate([Reply(status=400)])
    error = failure(events)
    assert isinstance(error, BadReply)
    assert "400: told to fail" in str(error)
    assert len(stub.requests) == 1


def test_server_that_is_down_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []
        server = OpenAIServer(OpenAIServerConfig(f"http://127.0.0.1:{port}/v1", model="m"))
        await server.generate(task(Decode()), events.append)
        await server.aclose()
        return events

    assert isinstance(failure(asyncio.run(main())), EngineUnreachable)


@pytest.mark.parametrize("deltas", [(), ("Hello",)])
def test_silent_server_times_out(deltas: tuple[str, ...]) -> None:
    events, _ = generate([Reply(deltas, ending="hang")], timeout_s=0.1)
    assert isinstance(failure(events), EngineTimeout)
    assert len(events) == 2 + len(deltas)


def raw(body: bytes) -> Reply:
    return Reply(raw=body, headers=EVENT_STREAM)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(raw=b"<html>It works!</html>", headers={"Content-Type": "text/html"}),
        Reply(raw=b""),
        Reply(raw=b"x" * 9_000_000),
        Reply(raw=b"abc", headers={**EVENT_STREAM, "Content-Encoding": "gzip"}),
        raw(b"data: {broken\n\n"),
        raw(b'data: {"object": "error", "message": "bad grammar"}\n\n'),
        raw(b'data: {"error": {"message": "bad grammar", "code": 400}}\n\n'),
        raw(b'data: {"error": "bad grammar"}\n\n'),
        raw(b'data: {"choices": [{"delta": {}}]}\n\n'),
        raw(
            b'data: {"choices": [{"text": "a"}], "usage": {"prompt_tokens": "x", "completion_tokens": 1}}\n\n'
        ),
        raw(b"data: [1, 2]\n\n"),
        raw(b"data: " + b"[" * 200_000 + b"\n\n"),
        raw(b'data: {"choices": [{"text": 5}]}\n\n'),
        raw(b'data: {"choices": [{"text": "\\ud800"}]}\n\n'),
        raw(b"data: " + b"x" * 3_000_000),
        Reply(("x",) * 200, "hang"),
        Reply(("x" * 3000,), "hang"),
    ],
)
def test_garbage_is_a_bad_reply(reply: Reply) -> None:
    events, stub = generate([reply], Decode(max_tokens=8))
    assert isinstance(failure(events), BadReply)
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        raw(b""),
        raw(b'data: {"error": {"message": "engine dead", "code": 500}}\n\n'),
        Reply(("Hello",), ending="cut"),
        Reply(("Hello",), ending="stop"),
        Reply(("Hello",), finish="abort"),
    ],
)
def test_an_answer_that_breaks_off_is_worth_another_attempt(reply: Reply) -> None:
    """Not by the adapter, which cannot take back what it has passed on, but by the scheduler."""
    events, stub = generate([reply], Decode(max_tokens=8))
    assert type(failure(events)) is EngineUnavailable
    assert len(stub.requests) == 1


def test_a_text_that_is_null_is_empty() -> None:
    body = b'data: {"choices": [{"text": null}]}\n\ndata: {"choices": [{"text": "so"}]}\n\ndata: [DONE]\n\n'
    events, _ = generate([raw(body)])
    assert isinstance(events[-1], Done)
    assert events[-1].value == "so"


@pytest.mark.parametrize("piece_bytes", [1, 3, 1000])
def test_events_are_read_however_they_are_written(piece_bytes: int) -> None:
    body = (
        b": a comment\r\nevent: x\r\n"
        b'data:{"choices": [{"text": "\xf0\x9f\x8e\xbc"}]}\r\n\r\n'
        b'data:  {"choices": [{"text": " so"}], "usage": null}\n\ndata:[DONE]\r\n\r\n'
    )
    events, _ = generate([Reply(raw=body, headers=EVENT_STREAM, piece_bytes=piece_bytes)])
    assert isinstance(events[-1], Done)
    assert events[-1].value == "🎼 so"


def test_cancelling_aborts_the_request() -> None:
    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []
        async with OpenAIStub(lambda _: Reply(("Hello",), ending="hang")) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url))
            running = asyncio.create_task(server.generate(task(Decode()), events.append))
            while len(events) < 2:
                await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.wait_for(stub.aborted.wait(), 60)
            with pytest.raises(asyncio.CancelledError):
                await running
            await server.aclose()
        return events

    assert asyncio.run(main()) == [Started(1), Piece(1, "Hello")]


@pytest.mark.parametrize("num_connections", [1, 3])
def test_requests_wait_for_a_connection_unstarted(num_connections: int) -> None:
    """The wait is not the server's silence: each of the requests is answered in less than that."""

    async def main() -> tuple[list[LLMEvent], int]:
        events: list[LLMEvent] = []
        async with OpenAIStub(lambda _: Reply(("so",))) as stub:
            config = OpenAIServerConfig(stub.url, model=MODEL, max_connections=num_connections)
            server = OpenAIServer(config)
            tasks = [LLMTask(n, "q", "answer", (Segment("x"),), Decode()) for n in range(8)]
            running = [asyncio.create_task(server.generate(task, events.append)) for task in tasks]
            await asyncio.sleep(0)
            assert [event.task for event in events] == list(range(num_connections))
            await asyncio.gather(*running)
            await server.aclose()
        return events, stub.most_open

    events, most_open = asyncio.run(main())
    assert sum(isinstance(event, Done) for event in events) == 8
    assert most_open <= num_connections


def test_one_that_fails_leaves_the_others_alone() -> None:
    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []

        def answer(request: Mapping[str, Any]) -> Reply:
            return {"hang": Reply(ending="hang"), "cut": Reply(("a",), "cut")}.get(request["prompt"], OK)

        async with OpenAIStub(answer) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url, api="completions", timeout_s=0.2))
            prompts = ["hang", "cut", "fine", "hang", "good"]
            tasks = [LLMTask(n, "q", "answer", (Segment(p),), Decode()) for n, p in enumerate(prompts)]
            await asyncio.gather(*(server.generate(task, events.append) for task in tasks))
            await server.aclose()
        return events

    endings = {event.task: type(event) for event in asyncio.run(main()) if isinstance(event, Done | Failed)}
    assert endings == {0: Failed, 1: Failed, 2: Done, 3: Failed, 4: Done}


def test_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    _, stub = generate([OK], api_key_env="MY_KEY")
    assert {head["authorization"] for head in stub.heads} == {"Bearer secret"}
    _, stub = generate([OK], api_key_env="NO_KEY")
    assert not any("authorization" in head for head in stub.heads)
    monkeypatch.setenv("MY_KEY", "sécret")
    with pytest.raises(ConfigError, match="MY_KEY"):
        OpenAIServer(OpenAIServerConfig("http://localhost", api_key_env="MY_KEY"))


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://:80/v1",
        "http://x:port",
        "http://[::1",
        "http://x:999999",
    ],
)
def test_url_has_to_be_one(url: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(url)):
        OpenAIServerConfig(url)


def test_settings_have_to_make_sense() -> None:
    with pytest.raises(ConfigError, match="there is no api 'voice'"):
        OpenAIServerConfig("http://x", api="voice")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_connections"):
        OpenAIServerConfig("http://x", max_connections=0)


def test_a_tenant_is_kept_apart_in_the_servers_cache() -> None:
    async def main() -> list[Mapping[str, Any]]:
        async with OpenAIStub(lambda _: OK) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url))
            for tenant in ("", "one"):
                task = LLMTask(1, "q", "answer", (Segment("x"),), Decode(), tenant)
                await server.generate(task, lambda _: None)
            await server.aclose()
        return stub.requests

    first, second = asyncio.run(main())
    assert "cache_salt" not in first
    assert second["cache_salt"] == "one"
