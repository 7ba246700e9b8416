"""Instances of engines, seen from the event loop: inline, in a thread, in a process, or behind a server.

Each takes commands without waiting and answers through `say`, which may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

from stretto.engine import Engine
from stretto.engines.base import AsyncLLM, BatchEngine
from stretto.errors import ConfigError, EngineUnavailable
from stretto.messages import InstanceLost, LLMReport
from stretto.runtime.worker import (
    AdmitTask,
    Close,
    Command,
    ForgetQuery,
    Job,
    NotReady,
    Ready,
    RunBatch,
    Said,
    StopTask,
    run_batch,
    serve,
    typed,
)
from stretto.tasks import Failed, LLMTask

_CLOSE_TIMEOUT_S = 5.0

Say = Callable[[Said], None]


class Instance(Protocol):
    """One running replica."""

    def send(self, command: Command) -> None:
        """Hand over a command; never waits."""
        ...

    async def close(self) -> None:
        """End it, however busy it is; nothing is said afterwards that matters."""
        ...


class InlineInstance:
    """Runs batches on the event loop itself: for work of microseconds."""

    def __init__(self, job: Job, say: Say) -> None:
        self._job = job
        self._say = say
        try:
            self._engine: BatchEngine = job.executable(job.config)
        except Exception as error:
            say(NotReady(typed(error)))
        else:
            say(Ready())

    def send(self, command: Command) -> None:
        match command:
            case RunBatch(batch, tasks):
                self._say(run_batch(self._job, self._engine, batch, tasks))
            case ForgetQuery(query):
                self._engine.release(query)

    async def close(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()


class ThreadInstance:
    """Runs an engine on a thread of its own. A thread that hangs is left behind; it is a daemon."""

    def __init__(self, job: Job, say: Say) -> None:
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        name = f"{job.engine}/{job.instance}"
        self._thread = threading.Thread(target=serve, args=(job, self._inbox, say), name=name, daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    async def close(self) -> None:
        self._inbox.put(Close())
        await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT_S)


class ProcessInstance:
    """Runs an engine in a process of its own, which can be killed when it hangs."""

    def __init__(self, job: Job, say: Say) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve_process, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._is_closing = False
        listener = threading.Thread(target=self._listen, args=(job, say), daemon=True)
        listener.start()

    def send(self, command: Command) -> None:
        with contextlib.suppress(OSError):
            self._ours.send(command)

    async def close(self) -> None:
        self._is_closing = True
        self.send(Close())
        await asyncio.to_thread(self._process.join, _CLOSE_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join)

    def kill(self) -> None:
        """End it at once."""
        self._is_closing = True
        self._process.kill()

    def _listen(self, job: Job, say: Say) -> None:
        is_ready = False
        while True:
            try:
                said = self._ours.recv()
            except (EOFError, OSError):
                break
            is_ready = is_ready or isinstance(said, Ready)
            say(said)
            if isinstance(said, NotReady):
                return
        if not self._is_closing:
            self._process.join()
            died = EngineUnavailable(
                f"{job.engine}/{job.instance} died with exit code {self._process.exitcode}"
            )
            say(InstanceLost(job.engine, job.instance, died) if is_ready else NotReady(died))


class _PipeInbox:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self) -> Command:
        try:
            command: Command = self._connection.recv()
        except EOFError:
            return Close()
        return command

    def empty(self) -> bool:
        return not self._connection.poll()


def _serve_process(job: Job, connection: Connection) -> None:
    serve(job, _PipeInbox(connection), connection.send)


class ServerInstance:
    """Speaks to an LLM server: one asyncio task for each request."""

    def __init__(self, job: Job, say: Say) -> None:
        self._job = job
        self._say = say
        self._tasks: dict[int, asyncio.Task[None]] = {}
        try:
            self._engine: AsyncLLM = job.executable(job.config)
        except Exception as error:
            say(NotReady(typed(error)))
        else:
            say(Ready())

    def send(self, command: Command) -> None:
        match command:
            case AdmitTask(task):
                self._tasks[task.id] = asyncio.create_task(self._generate(task))
            case StopTask(task_id):
                if task_id in self._tasks:
                    self._tasks.pop(task_id).cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if hasattr(self, "_engine"):
            await self._engine.aclose()

    async def _generate(self, task: LLMTask) -> None:
        job = self._job
        try:
            await self._engine.generate(
                task, lambda event: self._say(LLMReport(job.engine, job.instance, event))
            )
        except Exception as error:
            self._say(LLMReport(job.engine, job.instance, Failed(task.id, typed(error))))
        finally:
            self._tasks.pop(task.id, None)


def start_instance(engine: Engine, index: int, say: Say) -> Instance:
    """Start replica `index`; it says `Ready` or `NotReady` once its engine is constructed.

    Raises:
        ConfigError: this kind of engine cannot be placed so.
    """
    job = Job(engine.name, index, engine.is_llm, engine.executable, engine.config)
    if engine.kind == "llm_server":
        return ServerInstance(job, say)
    match engine.placement:
        case "inline":
            if engine.is_llm:
                raise ConfigError(f"engine {engine.name!r}: an LLM cannot run inline")
            return InlineInstance(job, say)
        case "thread":
            return ThreadInstance(job, say)
        case "process":
            return ProcessInstance(job, say)
    raise ConfigError(f"engine {engine.name!r}: there is no placement {engine.placement!r}")
