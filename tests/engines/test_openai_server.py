"""The server adapter against real sockets, with every fault a server can show."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import pytest
from openai_stub import MODEL, OpenAIStub, Reply

from stretto.core import Segment
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.errors import BadReply, ConfigError, EngineTimeout, EngineUnavailable, StrettoError
from stretto.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece, Started

OK = Reply((" Hello", " wor", "ld", "\n"))
LIST = Decode(items="json_list", max_items=2)


def task(decode: Decode | None) -> LLMTask:
    return LLMTask(1, "q", "answer", (Segment("Say: "), Segment("hello", "text")), decode)


def generate(
    replies: Iterable[Reply],
    decode: Decode | None = None,
    timeout_s: float = 5.0,
    stop: tuple[str, ...] = (),
) -> tuple[list[LLMEvent], OpenAIStub]:
    """The events of one task whose requests are answered by `replies` in turn."""

    async def main() -> tuple[list[LLMEvent], OpenAIStub]:
        turns = iter(replies)
        events: list[LLMEvent] = []
        async with OpenAIStub(lambda _: next(turns)) as stub:
            config = OpenAIServerConfig(stub.url, timeout_s=timeout_s, stop=stop, backoff_s=0.001)
            server = OpenAIServer(config)
            await server.generate(task(decode or Decode()), events.append)
            if isinstance(events[-1], Done) and decode == LIST:
                await asyncio.wait_for(stub.aborted.wait(), 5)
            await server.aclose()
        return events, stub

    return asyncio.run(main())


def failure(events: list[LLMEvent]) -> StrettoError:
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Failed)
    assert events[-1].error.step == "answer"
    return events[-1].error


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
    assert stub.requests[0]["stop"] == sent
    assert isinstance(events[-1], Done)
    assert events[-1].value == (["a", "b"] if decode == LIST else "so.")


def test_prefill_is_done_without_a_request() -> None:
    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []
        await OpenAIServer(OpenAIServerConfig("http://127.0.0.1:1")).generate(task(None), events.append)
        return events

    assert asyncio.run(main()) == [Started(1), Done(1, None)]


def test_stream_is_closed_when_the_list_is_complete() -> None:
    events, _ = generate([Reply(('["a", ', '"b"', "and so on"), ending="hang")], LIST)
    assert events[1:3] == [Piece(1, "a"), Piece(1, "b")]
    assert isinstance(events[-1], Done)
    assert events[-1].value == ["a", "b"]


def test_line_breaks_of_unicode_do_not_cut_an_event() -> None:
    events, _ = generate([Reply(("a\u2028b\x85c",))])
    assert isinstance(events[-1], Done)
    assert events[-1].value == "a\u2028b\x85c"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_server_is_asked_again(status: int) -> None:
    events, stub = generate([Reply(status=status), Reply(status=status), OK])
    assert isinstance(events[-1], Done)
    assert len(stub.requests) == 3


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

    assert isinstance(failure(asyncio.run(main())), EngineUnavailable)


@pytest.mark.parametrize("deltas", [(), ("Hello",)])
def test_silent_server_times_out(deltas: tuple[str, ...]) -> None:
    events, _ = generate([Reply(deltas, ending="hang")], timeout_s=0.1)
    assert isinstance(failure(events), EngineTimeout)
    assert len(events) == 2 + len(deltas)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(raw=b"<html>It works!</html>"),
        Reply(raw=b"data: {broken\n\n"),
        Reply(raw=b'data: {"object": "error", "message": "out of memory"}\n\n'),
        Reply(raw=b'data: {"choices": [{"delta": {}}]}\n\n'),
        Reply(raw=b"data: [1, 2]\n\n"),
        Reply(raw=b"data: " + b"[" * 200_000 + b"\n\n"),
        Reply(raw=b'data: {"choices": [{"text": 5}]}\n\n'),
        Reply(raw=b'data: {"choices": [{"text": "\\ud800"}]}\n\n'),
        Reply(raw=b"data: " + b"x" * 3_000_000),
        Reply(("x",) * 200, "hang"),
        Reply(("x" * 3000,), "hang"),
        Reply(raw=b""),
        Reply(("Hello",), ending="cut"),
        Reply(("Hello",), ending="stop"),
    ],
)
def test_garbage_or_a_cut_stream_is_a_bad_reply(reply: Reply) -> None:
    events, stub = generate([reply], Decode(max_tokens=8))
    assert isinstance(failure(events), BadReply)
    assert len(stub.requests) == 1


def test_a_text_that_is_null_is_empty() -> None:
    raw = b'data: {"choices": [{"text": null}]}\n\ndata: {"choices": [{"text": "so"}]}\n\ndata: [DONE]\n\n'
    events, _ = generate([Reply(raw=raw)])
    assert isinstance(events[-1], Done)
    assert events[-1].value == "so"


def test_cancelling_aborts_the_request() -> None:
    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []
        async with OpenAIStub(lambda _: Reply(("Hello",), ending="hang")) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url))
            running = asyncio.create_task(server.generate(task(Decode()), events.append))
            while len(events) < 2:
                await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.wait_for(stub.aborted.wait(), 5)
            with pytest.raises(asyncio.CancelledError):
                await running
            await server.aclose()
        return events

    assert asyncio.run(main()) == [Started(1), Piece(1, "Hello")]


def test_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    server = OpenAIServer(OpenAIServerConfig("http://localhost", api_key_env="MY_KEY"))
    assert server._client.headers["Authorization"] == "Bearer secret"


def test_url_needs_its_scheme() -> None:
    with pytest.raises(ConfigError, match="http://"):
        OpenAIServer(OpenAIServerConfig("localhost:8000"))
