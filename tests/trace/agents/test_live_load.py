"""The replay in real time: its times in virtual time, and its requests at a server over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.openai_stub import OpenAIStub, Reply
from support.virtual_loop import in_real_time, in_virtual_time

from stretto.model.errors import EngineUnavailable
from stretto.trace.agents.live_load import LoadAnswer, run_live
from stretto.trace.agents.load_report import RequestTimes, summarise_load
from stretto.trace.agents.openai_load import request_body, send_trace
from stretto.trace.agents.prompts import made_up_ids, made_up_words
from stretto.trace.agents.requests import (
    After,
    AgentRequest,
    AgentTrace,
    ChatPrompt,
    SizedPrompt,
    checked_trace,
)


def trace(*requests: AgentRequest) -> AgentTrace:
    return checked_trace(Path("t"), requests)


def sized(name: str, *after: After, arrival_s: float = 0.0, tokens: int = 10) -> AgentRequest:
    return AgentRequest(name, 1, SizedPrompt(tokens), arrival_s, after, 4)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# --- the driver, in virtual time


class Answering:
    """An `ask` that answers after `seconds`, the first piece after half of them; some requests fail."""

    def __init__(self, seconds: Mapping[str, float], failing: Sequence[str] = ()) -> None:
        self._seconds = seconds
        self._failing = failing
        self.most_at_once = 0
        self.cancelled: list[str] = []
        self._running = 0

    async def __call__(
        self, request: AgentRequest, messages: Sequence[Mapping[str, Any]], note_first: Callable[[], None]
    ) -> LoadAnswer:
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            await asyncio.sleep(self._seconds[request.id] / 2)
            if request.id in self._failing:
                raise EngineUnavailable("it is down")
            note_first()
            await asyncio.sleep(self._seconds[request.id] / 2)
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        finally:
            self._running -= 1
        return LoadAnswer("so", 10, 4, 5)


@in_virtual_time
async def test_requests_are_sent_when_they_are_due() -> None:
    found = trace(
        sized("a", arrival_s=1.0),
        sized("b", After("a", 0.5)),
        sized("c", After("a", 0.5)),
        sized("d", After("b"), After("c", 2.0)),
        sized("e", After("a", 0.25, "start")),
    )
    times: list[RequestTimes] = []
    ask = Answering({"a": 2.0, "b": 4.0, "c": 1.0, "d": 1.0, "e": 9.0})
    await run_live(found, ask, times)
    assert [(one.request, one.due_s, one.start_s, one.first_s, one.end_s) for one in times] == [
        ("a", 1.0, 1.0, 2.0, 3.0),
        ("c", 3.5, 3.5, 4.0, 4.5),
        ("b", 3.5, 3.5, 5.5, 7.5),
        ("d", 7.5, 7.5, 8.0, 8.5),
        ("e", 1.25, 1.25, 5.75, 10.25),
    ]
    assert ask.most_at_once == 3
    report = summarise_load(found, times)
    assert (report.jobs_done, report.jobs_per_hour) == (1, 3600 / 9.25)


@in_virtual_time
async def test_a_failure_drops_what_waits_for_it() -> None:
    found = trace(sized("a"), sized("b", After("a")), sized("c"), sized("d", After("c", 1.0)))
    times: list[RequestTimes] = []
    await run_live(found, Answering({"a": 4.0, "c": 1.0, "d": 1.0}, failing=["a"]), times)
    assert [(one.request, one.error) for one in times] == [
        ("c", None),
        ("a", "EngineUnavailable: it is down"),
        ("d", None),
    ]
    report = summarise_load(found, times)
    assert (report.answered, report.failed, report.not_ended, report.jobs_done) == (2, 1, 1, 1)
    assert report.errors == {"EngineUnavailable: it is down": 1}


@in_virtual_time
async def test_cancelling_cancels_what_runs_and_keeps_what_was_measured() -> None:
    found = trace(sized("a"), sized("b", After("a")), sized("c"))
    times: list[RequestTimes] = []
    ask = Answering({"a": 1.0, "b": 9.0, "c": 9.0})
    running = asyncio.create_task(run_live(found, ask, times))
    await asyncio.sleep(2.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ask.cancelled) == ["b", "c"]
    assert [one.request for one in times] == ["a"]
    assert summarise_load(found, times).not_ended == 2


# --- prompts


def test_made_up_prompts_have_their_lengths_and_share_their_blocks() -> None:
    a, b = SizedPrompt(100, (1, 2), 64), SizedPrompt(80, (1, 3), 64)
    ids, others = made_up_ids("a", a), made_up_ids("b", b)
    assert (len(ids), len(others)) == (100, 80)
    assert ids[:64] == others[:64]
    assert ids[64:80] != others[64:]
    assert made_up_ids("a", SizedPrompt(50)) != made_up_ids("b", SizedPrompt(50))
    assert len(made_up_words("a", a).split()) == 100
    assert made_up_words("a", a).split()[:64] == made_up_words("b", b).split()[:64]


def test_a_body_has_the_fields_of_its_trace() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    prompt = ChatPrompt((user("Hi"),), tools=(tool,))
    chat = AgentRequest("a", 1, prompt, output_tokens=7, model="m", extra={"temperature": 0, "max_tokens": 9})
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert request_body(chat, prompt.messages, "other", "chat") == {
        **{"model": "m", "max_tokens": 9, "tools": [tool], "messages": [user("Hi")], "temperature": 0},
        **streamed,
    }
    ids = made_up_ids("s", SizedPrompt(10))
    body = {"model": "other", "max_tokens": 4, "ignore_eos": True, **streamed}
    assert request_body(sized("s"), (), "other", "completions") == {**body, "prompt": ids}
    assert request_body(sized("s"), [user("w")], "other", "chat") == {**body, "messages": [user("w")]}


# --- over HTTP


async def load(found: AgentTrace, stub: OpenAIStub) -> list[RequestTimes]:
    times: list[RequestTimes] = []
    await send_trace(found, times, stub.url)
    return times


@in_real_time
async def test_conversations_go_on_with_the_servers_answers() -> None:
    first, fork = ChatPrompt((user("plan"),)), ChatPrompt((user("why?"),), continues="a")
    second = ChatPrompt(({"role": "tool", "content": "3"},), continues="a")
    third = ChatPrompt((user("end"),), continues="b")
    found = trace(
        AgentRequest("a", 1, first),
        AgentRequest("b", 1, second, after=(After("a"),)),
        AgentRequest("c", 1, third, after=(After("b"),)),
        AgentRequest("f", 1, fork, after=(After("a"),)),
        sized("s", tokens=12),
    )
    reply = Reply(("I", " see"), finish="stop", num_prompt=9, num_cached=4)
    async with OpenAIStub(lambda _: reply) as stub:
        times = await load(found, stub)
    assert [one.error for one in times] == [None] * 5
    assert {one.num_output for one in times} == {2}
    assert {(one.num_prompt, one.num_cached) for one in times} == {(9, 4)}
    assert all(one.first_s is not None and one.start_s <= one.first_s <= one.end_s for one in times)
    said = {"role": "assistant", "content": "I see"}
    tool = {"role": "tool", "content": "3"}
    sent = [body["messages"] for body in stub.requests if "messages" in body]
    assert len(sent) == 4
    for messages in (
        [user("plan")],
        [user("plan"), said, tool],
        [user("plan"), said, user("why?")],
        [user("plan"), said, tool, said, user("end")],
    ):
        assert messages in sent
    (completion,) = [body for body in stub.requests if "prompt" in body]
    assert len(completion["prompt"]) == 12
    assert {body["model"] for body in stub.requests} == {"stub-model"}


@in_real_time
async def test_refusals_and_broken_answers_are_errors_of_their_requests() -> None:
    replies = {
        400: Reply(status=400),
        503: Reply(status=503),
        1: Reply(("a",), ending="cut"),
        2: Reply(("a",)),
    }
    found = trace(*(AgentRequest(f"{n}", 1, SizedPrompt(10), output_tokens=n) for n in replies))
    async with OpenAIStub(lambda body: replies[body["max_tokens"]]) as stub:
        times = {one.request: one.error for one in await load(found, stub)}
        assert len(stub.requests) == 4  # nothing is tried again
    assert times["2"] is None
    assert str(times["400"]).startswith("BadReply: ")
    assert str(times["503"]).startswith("EngineBusy: ")
    assert str(times["1"]).startswith("EngineUnavailable: ")
