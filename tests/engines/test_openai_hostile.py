"""The server adapter against servers that mean no good, and what cannot be sent to any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.openai_stub import EVENT_STREAM, OpenAIStub, Reply

from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.openai_server.metrics import CacheConfig, read_cache_config, read_load
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.model.errors import (
    BadReply,
    BadServer,
    ConfigError,
    EngineTimeout,
    EngineUnavailable,
    StrettoError,
    UserError,
)
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask
from stretto.model.values import Segment

pytest_plugins = ("support.llm_fixtures",)

OK = Reply(("so",))
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def task(text: str = "hello", decode: Decode | None = None, tenant: str = "", task_id: int = 1) -> LLMTask:
    return LLMTask(task_id, "q", "answer", (Segment(text, "text"),), decode or Decode(max_tokens=8), tenant)


def ending(asked: LLMTask, reply: Reply = OK, *, tokenizer: str = "auto", **stub: object) -> Done | Failed:
    async def main() -> LLMEvent:
        events: list[LLMEvent] = []
        async with OpenAIStub(lambda _: reply, **stub) as server:  # type: ignore[arg-type]
            llm = OpenAIServer(OpenAIServerConfig(server.url, tokenizer=tokenizer, backoff_s=0.001))
            await llm.generate(asked, events.append)
            await llm.aclose()
        return events[-1]

    last = asyncio.run(asyncio.wait_for(main(), 100))
    assert isinstance(last, Done | Failed)
    return last


def failure(last: LLMEvent) -> StrettoError:
    assert isinstance(last, Failed), last
    return last.error


@asynccontextmanager
async def dribbling(first: bytes, again: bytes) -> AsyncIterator[str]:
    """The URL of a server that writes `first`, then `again` for ever."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if first and b"/v1/models" in head:
                writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
                return
            writer.write(first)
            while again:
                writer.write(again)
                await writer.drain()
                await asyncio.sleep(0.005)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("first", "again", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-More: yes\r\n", EngineTimeout),
        (b"HTTP/1.1 200 OK\r\nX: ", b"a", EngineTimeout),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", EngineTimeout),
        (b"HTTP/1.1 500 No\r\n\r\n", b"x", EngineTimeout),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x", EngineTimeout),
        (STREAM, b": still there\n\n", EngineTimeout),
        (STREAM, b"\n", EngineTimeout),
        (STREAM + b'data: {"choices": [{"text": "a"}]}\n\n', b": still there\n\n", EngineTimeout),
        (STREAM, b'data: {"choices": [{"text": ""}]}\n\n', BadServer),
        (STREAM, b'data: {"choices": []}\n\n', BadServer),
    ],
)
def test_a_server_that_never_ends_is_not_waited_for(
    first: bytes, again: bytes, kind: type[StrettoError]
) -> None:
    async def main() -> LLMEvent:
        events: list[LLMEvent] = []
        timeout_s = 0.2 if kind is EngineTimeout else 20
        async with dribbling(first, again) as url:
            config = OpenAIServerConfig(
                url,
                model="m",
                warms_prefixes=False,
                timeout_s=timeout_s,
                connect_timeout_s=0.5,
                max_retries=0,
            )
            llm = OpenAIServer(config)
            await llm.generate(task(), events.append)
            await llm.aclose()
        return events[-1]

    assert type(failure(asyncio.run(asyncio.wait_for(main(), 100)))) is kind


def test_a_silent_server_is_asked_what_it_is_once_for_all_who_wait() -> None:
    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []
        async with dribbling(b"", b"") as url:
            llm = OpenAIServer(OpenAIServerConfig(url, timeout_s=0.5))
            asking = [llm.generate(task(task_id=n), events.append) for n in range(40)]
            await asyncio.wait_for(asyncio.gather(*asking), 15)  # one by one it would be 20 s
            await llm.aclose()
        return events

    ends = [event for event in asyncio.run(main()) if isinstance(event, Failed)]
    assert len(ends) == 40
    assert all(type(end.error) is EngineTimeout for end in ends)


def test_who_comes_after_a_failed_asking_asks_again() -> None:
    answers: list[Callable[[], str]] = [lambda: "{}", lambda: '{"data": [{"id": "m"}]}']

    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []
        async with OpenAIStub(lambda _: OK, pages={"GET /v1/models": lambda _: answers.pop(0)()}) as stub:
            llm = OpenAIServer(OpenAIServerConfig(stub.url))
            await llm.generate(task(), events.append)
            await llm.generate(task(), events.append)
            await llm.aclose()
        return [event for event in events if isinstance(event, Done | Failed)]

    assert [type(event) for event in asyncio.run(main())] == [Failed, Done]


@pytest.mark.parametrize("cached", ["9" * 400, "9" * 30, "true", "1.5", "-1"])
def test_counts_beyond_reason_are_a_bad_reply(cached: str) -> None:
    usage = '{"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": %s}}'
    body = 'data: {"choices": [{"text": "a"}], "usage": ' + usage % cached + "}\n\ndata: [DONE]\n\n"
    assert isinstance(failure(ending(task(), Reply(raw=body.encode(), headers=EVENT_STREAM))), BadReply)


@pytest.mark.parametrize("name", [None, 5, {"a": 1}, "", "\ud800"])
def test_a_model_without_a_name_is_a_bad_reply(name: object) -> None:
    assert isinstance(failure(ending(task(), model={"id": name})), BadReply)


@pytest.mark.parametrize("root", ["x" * 5000, "x\0y", "\ud800", [1], "/proc/1/root"])
@pytest.mark.parametrize("limit", [-5, True, "5"])
def test_facts_that_cannot_be_are_passed_over(root: object, limit: object) -> None:
    assert isinstance(ending(task(), model={"root": root, "max_model_len": limit}), Done)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e400", "x" * 1000])
def test_a_load_that_is_no_number_is_a_bad_reply(value: str) -> None:
    with pytest.raises(BadReply):
        read_load(f"sglang:num_running_reqs {value}\nsglang:num_queue_reqs 5\nsglang:token_usage 0.75\n")


def test_a_cache_of_absurd_size_is_one_of_unknown_size() -> None:
    labels = f'block_size="{"9" * 5000}",num_gpu_blocks="{"9" * 5000}"'
    assert read_cache_config(f"vllm:cache_config_info{{{labels}}} 1") == CacheConfig()


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (task("\ud800"), UserError),
        (task(5), UserError),  # type: ignore[arg-type]
        (task(tenant="\udfff"), ConfigError),
        (task(decode=Decode(stop=("\udfff",))), ConfigError),
        (task(decode=Decode(temperature=float("nan"))), ConfigError),
        (task(decode=Decode(top_p=7.0)), ConfigError),
        (task(decode=Decode(json_schema='{"minimum": NaN}')), ConfigError),
    ],
)
def test_what_cannot_be_sent_is_said(asked: LLMTask, kind: type[StrettoError]) -> None:
    assert type(failure(ending(asked))) is kind


@pytest.mark.parametrize("which", ["equal", "with bos", "end alone", "others", "nothing"])
def test_a_tokenizer_is_the_servers_if_it_gives_the_whole_probe(tiny_checkpoint: Path, which: str) -> None:
    from stretto.engines.openai_server.discovery import _PROBE

    tokens = PromptTokenizer(tiny_checkpoint).encode((Segment(_PROBE, "probe"),))
    theirs = {
        "equal": tokens[1:],
        "with bos": tokens,
        "end alone": tokens[-1:],
        "others": ["a"],
        "nothing": None,
    }[which]
    pages = {"POST /tokenize": lambda _: json.dumps({"tokens": theirs})}
    last = ending(task(), tokenizer=str(tiny_checkpoint), pages=pages)
    if which in ("end alone", "others"):
        assert isinstance(failure(last), ConfigError)
    else:
        assert isinstance(last, Done)


def test_where_a_redirection_goes_is_said_and_not_followed() -> None:
    reply = Reply(status=302, raw=b"", headers={"Location": "http://elsewhere/"})
    error = failure(ending(task(), reply))
    assert isinstance(error, BadReply)
    assert "302: go to http://elsewhere/" in str(error)


def test_a_password_in_the_url_is_not_told() -> None:
    async def main() -> LLMEvent:
        events: list[LLMEvent] = []
        llm = OpenAIServer(OpenAIServerConfig("http://me:secret@127.0.0.1:1"))
        await llm.generate(task(), events.append)
        await llm.aclose()
        return events[-1]

    error = failure(asyncio.run(main()))
    assert isinstance(error, EngineUnavailable)
    assert "secret" not in str(error)


def test_a_key_may_have_a_line_break_behind_it_but_none_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\n")
    assert isinstance(ending(task()), Done)
    monkeypatch.setenv("OPENAI_API_KEY", "sk\x01secret")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as refused:
        OpenAIServer(OpenAIServerConfig("http://x"))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=401, raw=b'{"error": {"message": "Incorrect API key provided: sk-4711-abcd."}}'),
        Reply(status=429, raw=b"too many requests of sk-4711-abcd"),
        Reply(raw=b"You are sk-4711-abcd. Sign in!", headers={"Content-Type": "text/html"}),
    ],
)
def test_a_key_that_a_server_repeats_is_not_told(reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-4711-abcd")
    error = failure(ending(task(), reply))
    assert "(the key)" in error.message
    assert "4711" not in str(error)


@pytest.mark.parametrize(
    ("name", "value"), [("ALL_PROXY", "socks9://x"), ("SSL_CERT_FILE", "/no/such/file"), ("ALL_PROXY", None)]
)
def test_a_bad_environment_is_a_config_error(
    name: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value or "")
    url = ("https://x" if name == "SSL_CERT_FILE" else "http://x") if value else "http://xn--a"
    with pytest.raises(ConfigError):
        OpenAIServer(OpenAIServerConfig(url))


def test_a_url_has_no_fragment() -> None:
    with pytest.raises(ConfigError, match="must end with its path or its query"):
        OpenAIServer(OpenAIServerConfig("http://x/#part"))


def test_cancelled_at_any_moment_it_leaves_nothing_behind() -> None:
    async def main() -> tuple[int, int]:
        async with asyncio.timeout(100), OpenAIStub(lambda _: Reply(tuple("abc"))) as stub:
            llm = OpenAIServer(OpenAIServerConfig(stub.url, max_connections=1))
            for num_ticks in range(0, 160, 4):
                events: list[LLMEvent] = []
                running = asyncio.create_task(llm.generate(task(), events.append))
                for _ in range(num_ticks):
                    await asyncio.sleep(0)
                running.cancel()
                await asyncio.wait([running])
            await llm.generate(task(), events.append)
            assert isinstance(events[-1], Done)
            while stub.num_open > 0:
                await asyncio.sleep(0.001)
            await llm.aclose()
        for _ in range(1000):  # what is ending may take a few turns more
            if asyncio.all_tasks() == {asyncio.current_task()}:
                break
            await asyncio.sleep(0.001)
        return len(asyncio.all_tasks()) - 1, stub.most_open

    num_left, most_open = asyncio.run(main())
    assert num_left == 0
    assert most_open <= 2  # one that is being closed, one that opens
