"""Answers that nobody reads parts of are asked for whole; all else about them is as if they were streamed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from support.openai_stub import OpenAIStub, Reply

import stretto.engines.openai_server.attempts as attempts
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.openai_server.whole_answers import WholeAnswers
from stretto.model.errors import BadReply, EngineTimeout, EngineUnavailable, EngineUnreachable
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece
from stretto.model.values import Segment

HELLO = Reply((" Hello", " wor", "ld"), finish="stop")


def task(number: int, silence_s: float = math.inf, decode: Decode | None = None) -> LLMTask:
    prompt = (Segment("Say: "), Segment("hello", "text"))
    return LLMTask(number, "q", "answer", prompt, decode or Decode(), silence_s=silence_s)


def ask(
    tasks: Sequence[LLMTask], replies: Callable[[Mapping[str, Any]], Reply] = lambda _: HELLO, **config: Any
) -> tuple[list[LLMEvent], list[bool]]:
    """Return the events of tasks, one after the other, and whether each request was for a stream."""

    async def main() -> tuple[list[LLMEvent], list[bool]]:
        async with OpenAIStub(replies) as stub:
            server = OpenAIServer(
                OpenAIServerConfig(stub.url, **{"api": "completions", "backoff_s": 0.001, **config})
            )
            events: list[LLMEvent] = []
            for one in tasks:
                await server.generate(one, events.append)
            await server.aclose()
        return events, [bool(request.get("stream")) for request in stub.requests]

    return asyncio.run(main())


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_whole_answer_is_the_same_as_a_streamed_one(api: str) -> None:
    events, streamed = ask([task(1), task(2)], api=api)
    assert streamed == [True, False]  # how long an answer takes is not known before the first one
    first, second = (event for event in events if isinstance(event, Done))
    assert first.value == second.value == "Hello world"
    assert first.usage == second.usage
    assert [event.value for event in events if isinstance(event, Piece) and event.task == 2] == [
        "Hello world"
    ]


def test_what_somebody_reads_before_its_end_is_streamed() -> None:
    _, streamed = ask([task(1), task(2, silence_s=0.0), task(3)])
    assert streamed == [True, True, False]


def test_a_list_is_streamed_because_it_ends_with_its_json() -> None:
    def reply(request: Mapping[str, Any]) -> Reply:
        return Reply(('["a", ', '"b"]', "and so on"), "hang") if request["max_tokens"] == 99 else HELLO

    events, streamed = ask([task(1), task(2, decode=Decode(items="json_list", max_tokens=99))], reply)
    assert streamed == [True, True]
    assert isinstance(events[-1], Done)
    assert events[-1].value == ["a", "b"]


def test_an_answer_that_may_take_longer_than_the_silence_allowed_is_streamed() -> None:
    slow = Reply(("word",) * 16, finish="length", delta_s=0.01)
    _, streamed = ask([task(1), task(2), task(3, silence_s=0.1)], lambda _: slow)
    assert streamed == [True, False, True]


def test_stop_strings_of_the_client_end_a_whole_answer() -> None:
    events, streamed = ask(
        [task(1), task(2)], lambda _: Reply((" so.", "\nQues", "tion: what")), stop=("\nQuestion:",)
    )
    assert streamed == [True, False]
    assert [event.value for event in events if isinstance(event, Done)] == ["so.", "so."]


def test_a_whole_answer_that_is_none_fails() -> None:
    def reply(request: Mapping[str, Any]) -> Reply:
        return HELLO if request.get("stream") else Reply(raw=b'{"choices": []}')

    events, _ = ask([task(1), task(2)], reply)
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, BadReply)


def test_a_server_that_ends_the_request_itself_is_tried_again_elsewhere() -> None:
    def reply(request: Mapping[str, Any]) -> Reply:
        return HELLO if request.get("stream") else Reply(("Hel",), finish="abort")

    events, _ = ask([task(1), task(2)], reply)
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, EngineUnavailable)


def test_silence_beyond_the_limit_is_a_timeout_and_the_next_answer_is_streamed() -> None:
    def reply(request: Mapping[str, Any]) -> Reply:
        return HELLO if request.get("stream") else Reply(("x",), delta_s=30.0)

    tasks = [task(number, decode=Decode(max_tokens=4)) for number in (1, 2, 3)]
    events, streamed = ask(tasks, reply, timeout_s=1.0, connect_timeout_s=0.5)
    assert streamed == [True, False, True]
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert isinstance(failed.error, EngineTimeout)


def test_after_a_whole_answer_that_the_scheduler_has_given_up_the_next_one_is_streamed() -> None:
    """The limit of the scheduler may be shorter than that of the client, who does not see a timeout then."""

    def reply(request: Mapping[str, Any]) -> Reply:
        return HELLO if request.get("stream") else Reply(("x",), delta_s=30.0)

    async def main() -> list[bool]:
        async with OpenAIStub(reply) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url))
            server._asker.whole.observe(16, 0.001)
            first, second = (task(number, 0.2, Decode(max_tokens=16)) for number in (1, 2))
            given_up = asyncio.create_task(server.generate(first, lambda _: None))
            while not stub.requests:
                await asyncio.sleep(0.001)
            await asyncio.wait([given_up], timeout=0.2)
            given_up.cancel()
            await asyncio.wait([given_up])
            await server.generate(second, lambda _: None)
            await server.aclose()
            return [bool(request.get("stream")) for request in stub.requests]

    assert asyncio.run(main()) == [False, True]


def test_after_a_whole_answer_that_a_proxy_has_given_up_the_next_one_is_streamed() -> None:
    def reply(request: Mapping[str, Any]) -> Reply:
        return HELLO if request.get("stream") else Reply(status=504, headers={"retry-after": "1"})

    async def main() -> list[bool]:
        async with OpenAIStub(reply) as stub:
            server = OpenAIServer(OpenAIServerConfig(stub.url, max_retries=1, max_backoff_s=0.2))
            server._asker.whole.observe(16, 0.001)
            for number in (1, 2):
                await server.generate(task(number, 0.2, Decode(max_tokens=16)), lambda _: None)
            await server.aclose()
            return [bool(request.get("stream")) for request in stub.requests]

    assert asyncio.run(main()) == [False, False, True]


def test_an_answer_that_was_stopped_early_says_little() -> None:
    policy = WholeAnswers()
    policy.observe(100, 1.0)
    for _ in range(100):
        policy.observe_stopped(100, 0.01)
    assert not policy.decide(100, 3.9)
    policy.observe_stopped(100, 2.0)
    assert not policy.decide(100, 7.9)


def test_cancelling_a_whole_answer_closes_its_connection() -> None:
    async def main() -> None:
        lost = asyncio.Event()
        begun = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            begun.set()
            while await reader.read(65536):
                pass
            lost.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        llm = OpenAIServer(OpenAIServerConfig(url, model="m", tokenizer="none"))
        llm._asker.whole.observe(16, 0.001)
        running = asyncio.create_task(llm.generate(task(1), lambda _: None))
        await asyncio.wait_for(begun.wait(), 20)
        running.cancel()
        await asyncio.wait_for(lost.wait(), 20)
        await asyncio.wait([running])
        await llm.aclose()
        server.close()

    asyncio.run(main())


def test_a_server_that_dies_in_mid_answer_has_had_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a request that kills its server would count as never sent, and be tried for ever."""

    async def main() -> Failed:
        async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            server.close()
            writer.close()

        server = await asyncio.start_server(die, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        llm = OpenAIServer(OpenAIServerConfig(url, model="m", tokenizer="none", backoff_s=0.001))
        events: list[LLMEvent] = []
        await llm.generate(task(1), events.append)
        await llm.aclose()
        assert isinstance(events[-1], Failed)
        return events[-1]

    failed = asyncio.run(main())
    assert isinstance(failed.error, EngineUnavailable)
    assert not isinstance(failed.error, EngineUnreachable)
    monkeypatch.setattr(attempts, "_STALE_S", -1.0)  # as if the server had worked on it for a while
    assert not isinstance(asyncio.run(main()).error, EngineUnreachable)


def test_one_answer_in_sixteen_is_streamed_while_somebody_asks_what_prompts_cost() -> None:
    policy = WholeAnswers()
    policy.observe(100, 1.0)
    decided = []
    for _ in range(32):
        policy.want_prompt_time()
        decided.append(policy.decide(128, math.inf))
    assert decided.count(False) == 2


def test_nothing_is_streamed_for_prompts_that_nobody_asks_about() -> None:
    policy = WholeAnswers()
    policy.observe(100, 1.0)
    assert all(policy.decide(128, math.inf) for _ in range(64))
    policy.want_prompt_time()
    assert [policy.decide(128, math.inf) for _ in range(32)].count(False) == 1


def test_a_slow_answer_counts_for_a_while() -> None:
    policy = WholeAnswers()
    assert not policy.decide(100, 60.0)
    policy.observe(100, 1.0)
    assert policy.decide(100, 60.0)
    policy.observe(100, 30.0)
    assert not policy.decide(100, 60.0)
    for _ in range(100):
        policy.observe(100, 1.0)
    assert policy.decide(100, 60.0)


def test_the_first_answers_are_asked_for_whole_if_their_time_is_predicted() -> None:
    _, streams = ask([task(1), task(2)], token_s=0.01)
    assert streams == [False, False]
    _, streams = ask([task(1), task(2, silence_s=1.0)], token_s=1.0)
    assert streams == [True, True], "128 tokens may take longer than the server may be silent"
