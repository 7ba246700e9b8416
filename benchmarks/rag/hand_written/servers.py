"""Engines as servers for asyncio programs: each in a separate thread, with dynamic batching."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Thread
from typing import Any

from stretto.engines.contract import BatchEngine, SteppedLLM
from stretto.engines.processor import COMPUTING
from stretto.model.deployment import Deployment
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Task
from stretto.model.values import Prompt


def batch_units(deployment: Deployment) -> int:
    """Return the units that a batch may have."""
    return deployment.engine.max_batch or deployment.profile.max_efficient_batch


@dataclass(slots=True)
class _Call:
    task: Task
    units: int
    answer: asyncio.Future[Any]


class BatchServer:
    """Runs all waiting calls as a batch, in order of arrival, as soon as the engine is free."""

    def __init__(self, deployment: Deployment) -> None:
        self._replica = deployment.replicas[0]
        self._max_units = batch_units(deployment)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=deployment.name)
        self._waiting: asyncio.Queue[_Call] = asyncio.Queue()
        self._ids = count(1)
        self._executable: BatchEngine | None = None

    async def start(self) -> None:
        """Make the engine in its thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._make)

    async def serve(self) -> None:
        """Answer calls until cancelled."""
        loop = asyncio.get_running_loop()
        assert self._executable is not None
        left: _Call | None = None
        while True:
            batch = [left or await self._waiting.get()]
            units, left = batch[0].units, None
            while not self._waiting.empty():
                left = self._waiting.get_nowait()
                if units + left.units > self._max_units:
                    break
                batch.append(left)
                units, left = units + left.units, None
            try:
                answers = await loop.run_in_executor(self._thread, self._run, [c.task for c in batch])
            except Exception as error:
                for call in batch:
                    _settle(call.answer, error=error)
                continue
            for call, answer in zip(batch, answers, strict=True):
                _settle(call.answer, answer)

    def _run(self, tasks: Sequence[Task]) -> Sequence[object]:
        """Run a batch, and let the embedder know that it runs, as the runtime does."""
        assert self._executable is not None
        COMPUTING.begin()
        try:
            return self._executable.run(tasks)
        finally:
            COMPUTING.end()

    async def one(
        self, query: str, op: str, inputs: Mapping[str, object], config: Mapping[str, object], units: int = 1
    ) -> Any:
        """Run a single application."""
        return await self._call(Task(next(self._ids), query, op, op, inputs, config), units)

    async def each(
        self, query: str, op: str, columns: Mapping[str, Sequence[object]], config: Mapping[str, object]
    ) -> Any:
        """Run one application for each row of the columns."""
        num_items = len(next(iter(columns.values())))
        task = Task(next(self._ids), query, op, op, columns, config, num_items, tuple(columns))
        return await self._call(task, num_items)

    async def release(self, query: str) -> None:
        """Tell the engine that the query has ended."""
        assert self._executable is not None
        await asyncio.get_running_loop().run_in_executor(self._thread, self._executable.release, query)

    async def _call(self, task: Task, units: int) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(_Call(task, units, answer))
        return await answer

    async def close(self) -> None:
        """Free the engine in its thread, if it was made."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._free)
        self._thread.shutdown()

    def _make(self) -> None:
        self._executable = self._replica.executable(self._replica.config)

    def _free(self) -> None:
        if self._executable is not None:
            self._executable.close()


@dataclass(slots=True)
class LLMServer:
    """Steps the engine while it has work; requests join between steps."""

    deployment: Deployment
    _admitted: queue.SimpleQueue[LLMTask | None] = field(default_factory=queue.SimpleQueue)
    _answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _ids: count[int] = field(default_factory=lambda: count(1))
    _thread: Thread | None = None
    _error: Exception | None = None

    async def start(self) -> None:
        """Make the engine in its thread."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        self._thread = Thread(target=self._run, args=(loop, ready), name=self.deployment.name)
        self._thread.start()
        await ready

    async def complete(self, query: str, step: str, prompt: Prompt, decode: Decode, tenant: str = "") -> Any:
        """Complete a prompt; returns the value.

        Raises:
            Exception: the error of the request, or the error that ended the engine.
        """
        if self._error is not None:
            raise self._error
        task = LLMTask(next(self._ids), query, step, prompt, decode, tenant)
        self._answers[task.id] = answer = asyncio.get_running_loop().create_future()
        self._admitted.put(task)
        return await answer

    async def close(self) -> None:
        """End the server's thread."""
        self._admitted.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Future[None]) -> None:
        replica = self.deployment.replicas[0]
        try:
            llm: SteppedLLM = replica.executable(replica.config)
        except Exception as error:
            loop.call_soon_threadsafe(_settle, ready, None, error)
            return
        loop.call_soon_threadsafe(_settle, ready)
        try:
            self._serve(loop, llm)
        except Exception as error:
            loop.call_soon_threadsafe(self._die, error)
        COMPUTING.end()
        llm.close()

    def _serve(self, loop: asyncio.AbstractEventLoop, llm: SteppedLLM) -> None:
        while True:
            while not self._admitted.empty() or not llm.has_work():
                if not llm.has_work():
                    COMPUTING.end()
                task = self._admitted.get()
                if task is None:
                    return
                llm.admit(task, ())
            COMPUTING.begin()
            events = llm.step()
            loop.call_soon_threadsafe(self._hear, events)

    def _die(self, error: Exception) -> None:
        self._error = error
        while self._answers:
            _settle(self._answers.popitem()[1], error=error)

    def _hear(self, events: Sequence[LLMEvent]) -> None:
        for event in events:
            if isinstance(event, Done):
                _settle(self._answers.pop(event.task), event.value)
            elif isinstance(event, Failed):
                _settle(self._answers.pop(event.task), error=event.error)


def _settle(answer: asyncio.Future[Any], value: object = None, error: Exception | None = None) -> None:
    """Set the result of a future, unless it was cancelled."""
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers by engine name."""

    batch: Mapping[str, BatchServer]
    llm: Mapping[str, LLMServer]

    async def end(self, query: str) -> None:
        """Release the query at all engines."""
        await self.batch["vectors"].release(query)


@asynccontextmanager
async def serving(engines: Sequence[Deployment]) -> AsyncIterator[Servers]:
    """Servers of the engines, one instance each."""
    async with AsyncExitStack() as stack:
        llms = {}
        for deployment in engines:
            if deployment.engine.is_llm:
                llms[deployment.name] = server = LLMServer(deployment)
                stack.push_async_callback(server.close)
                await server.start()
        batches = {}
        for deployment in engines:
            if not deployment.engine.is_llm:
                batches[deployment.name] = batch = BatchServer(deployment)
                stack.push_async_callback(batch.close)
                await batch.start()
                serve = asyncio.create_task(batch.serve())
                stack.callback(serve.cancel)
        yield Servers(batches, llms)
