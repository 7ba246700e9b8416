"""Helpers of the tests of LLM engines: running tasks to their end, and a server in the form of an engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stretto.cluster.kv_events import KVEvent
from stretto.engines.contract import SteppedLLM
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask
from stretto.model.values import Prompt
from stretto.wire.paths import Api
from support.openai_stub import OpenAIStub, Reply


def task(task_id: int, prompt: Prompt, decode: Decode | None, query: str = "q") -> LLMTask:
    return LLMTask(task_id, query, f"step{task_id}", prompt, decode)


def drain(llm: SteppedLLM) -> list[LLMEvent]:
    """Step until there is nothing to do."""
    events: list[LLMEvent] = []
    while llm.has_work():
        events += llm.step()
    return events


def run(llm: SteppedLLM, prompt: Prompt, decode: Decode | None, query: str = "q") -> Done | Failed:
    """Run one task alone; return its ending."""
    llm.admit(task(0, prompt, decode, query), ())
    ending = drain(llm)[-1]
    assert isinstance(ending, Done | Failed)
    return ending


def value(llm: SteppedLLM, prompt: Prompt, decode: Decode | None, query: str = "q") -> object:
    """Run one task alone; return its value."""
    ending = run(llm, prompt, decode, query)
    assert isinstance(ending, Done), ending
    return ending.value


class SteppedServer:
    """An `OpenAIServer` and its stub as a `SteppedLLM`: a step waits for the next event."""

    def __init__(self, api: Api = "completions", tokenizer: Path | None = None) -> None:
        decode = PromptTokenizer(tokenizer).decode if tokenizer else None
        self._runner = asyncio.Runner()
        self._stub = self._runner.run(OpenAIStub(lambda body: _stub_answer(body, decode)).__aenter__())
        self._server = OpenAIServer(
            OpenAIServerConfig(self._stub.url, api=api, tokenizer=str(tokenizer or "auto"))
        )
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._events: list[LLMEvent] = []

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        self._tasks[task.id] = self._runner.get_loop().create_task(
            self._server.generate(task, self._events.append, rank)
        )

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        pass

    def cancel(self, task: int) -> None:
        if (running := self._tasks.pop(task, None)) is not None:
            running.cancel()
            self._runner.run(_settle(running))

    def suspend(self) -> list[tuple[int, tuple[int, ...]]]:
        raise AssertionError("a server keeps its tasks")

    def has_work(self) -> bool:
        return bool(self._tasks or self._events)

    def step(self) -> list[LLMEvent]:
        self._runner.run(asyncio.wait_for(self._next_event(), timeout=300))
        events = self._events[:]
        self._events.clear()
        for event in events:
            if isinstance(event, Done | Failed):
                self._runner.run(_settle(self._tasks.pop(event.task)))
        return events

    def release(self, query: str) -> None:
        pass

    def take_kv_events(self) -> list[KVEvent]:
        return []

    def close(self) -> None:
        self._runner.run(self._server.aclose())
        self._runner.run(self._stub.__aexit__())
        self._runner.close()

    async def _next_event(self) -> None:
        while not self._events:
            await asyncio.sleep(0)


async def _settle(running: asyncio.Task[None]) -> None:
    await asyncio.wait([running])


def _stub_answer(request: Mapping[str, Any], decode: Callable[[list[int]], str] | None) -> Reply:
    """Return a list when the prompt asks for JSON, else the prompt's words backwards, as many as allowed."""
    if "messages" in request:
        (message,) = request["messages"]
        prompt = message["content"]
    else:
        prompt = decode(request["prompt"]) if decode else request["prompt"]
    text = '["one", "two", "three"] and prose' if "JSON" in prompt else " ".join(prompt.split()[::-1])
    return Reply(tuple(re.findall(r"\s*\S+", text))[: request["max_tokens"]])
