"""Instances of engines, seen from the event loop: inline, in a thread, in a process, or behind a server.

Each takes commands without waiting and answers through `say`, which may be called from any thread. One
whose engine could not be constructed says `NotReady` and obeys nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import queue
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

from stretto.engine import Engine
from stretto.engines.contract import AsyncLLM, BatchEngine
from stretto.errors import BadReply, ConfigError, EngineFailure, EngineUnavailable
from stretto.messages import BatchDone, BatchFailed, InstanceLost, LLMReport
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
    check_event,
    died,
    run_batch,
    serve,
    typed,
)
from stretto.tasks import Done, Failed, LLMEvent, LLMTask

_DEADLY = (SystemExit, GeneratorExit, asyncio.CancelledError)
"""What ends an instance, and must not end the event loop that it runs on."""
_CLOSE_TIMEOUT_S = 2.0

Say = Callable[[Said], None]


class Instance(Protocol):
    """One running replica."""

    def send(self, command: Command) -> None:
        """Hand over a command; never waits."""
        ...

    async def close(self) -> None:
        """End it, however busy it is; nothing is said afterwards that matters."""
        ...


class LoopInstance:
    """Runs batches on the event loop itself: for work of microseconds."""

    def __init__(self, job: Job, say: Say) -> None:
        self._job = job
        self._say = say
        self._engine: BatchEngine | None = None
        try:
            self._engine = job.executable(job.config)
        except (Exception, *_DEADLY) as error:
            say(NotReady(typed(error)))
        else:
            say(Ready())

    def send(self, command: Command) -> None:
        if self._engine is None:
            return
        try:
            match command:
                case RunBatch(batch, tasks):
                    self._say(run_batch(self._job, self._engine, batch, tasks))
                case ForgetQuery(query):
                    self._engine.release(query)
        except (Exception, *_DEADLY) as error:
            self._say(died(self._job, error))

    async def close(self) -> None:
        if self._engine is not None:
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
        self._outbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._process = context.Process(target=_serve_process, args=(job, theirs), daemon=True)
        try:
            self._process.start()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            self._ours.close()
            raise ConfigError(f"engine {job.engine!r} cannot be sent to a process: {error}") from error
        finally:
            theirs.close()
        self._is_closing = False
        self._threads = [
            threading.Thread(target=run, args=(job, say), name=f"{job.engine}/{job.instance}", daemon=True)
            for run in (self._talk, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, command: Command) -> None:
        self._outbox.put(command)

    async def close(self) -> None:
        self._is_closing = True
        self.send(Close())
        await asyncio.to_thread(self._end)

    def kill(self) -> None:
        """End it at once."""
        self._is_closing = True
        self._process.kill()

    def _end(self) -> None:
        self._process.join(_CLOSE_TIMEOUT_S)
        self._process.kill()
        self._process.join()
        for thread in self._threads:
            thread.join(_CLOSE_TIMEOUT_S)
        self._ours.close()

    def _talk(self, job: Job, say: Say) -> None:
        """Pass commands on. A full pipe makes this thread wait, and not the event loop."""
        command: Command | None = None
        while not isinstance(command, Close):
            command = self._outbox.get()
            try:
                self._ours.send(command)
            except OSError:
                return  # it has died, as the listener will say
            except Exception as error:  # it does not pickle
                assert isinstance(command, RunBatch)
                failure = EngineFailure(f"its inputs cannot be sent to a process: {error}")
                say(BatchFailed(job.engine, job.instance, command.batch, failure))

    def _listen(self, job: Job, say: Say) -> None:
        is_ready = False
        while True:
            try:
                said = self._ours.recv()
            except (EOFError, OSError):
                how = "died"
                break
            except Exception as error:
                how = f"said what cannot be read ({type(error).__name__}: {error}) and was killed,"
                self._process.kill()
                break
            is_ready = is_ready or isinstance(said, Ready)
            say(said)
            if isinstance(said, NotReady):
                return
        if not self._is_closing:
            self._process.join(_CLOSE_TIMEOUT_S)
            lost = EngineUnavailable(
                f"{job.engine}/{job.instance} {how} with exit code {self._process.exitcode}"
            )
            say(InstanceLost(job.engine, job.instance, lost) if is_ready else NotReady(lost))


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes this process

    def say(said: Said) -> None:
        try:
            connection.send(said)
        except OSError:
            raise  # the parent has gone
        except Exception as error:
            if not isinstance(said, BatchDone):
                raise
            failure = BadReply(f"its results cannot leave the process: {error}")
            connection.send(BatchFailed(said.engine, said.instance, said.batch, failure))

    serve(job, _PipeInbox(connection), say)


class ServerInstance:
    """Speaks to an LLM server: one asyncio task for each request."""

    def __init__(self, job: Job, say: Say) -> None:
        self._job = job
        self._say = say
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._engine: AsyncLLM | None = None
        try:
            self._engine = job.executable(job.config)
        except (Exception, *_DEADLY) as error:
            say(NotReady(typed(error)))
        else:
            say(Ready())

    def send(self, command: Command) -> None:
        match command:
            case AdmitTask(task, rank) if self._engine is not None:
                self._tasks[task.id] = asyncio.create_task(self._generate(self._engine, task, rank))
            case StopTask(task_id):
                if task_id in self._tasks:
                    self._tasks.pop(task_id).cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._engine is not None:
            await self._engine.aclose()

    async def _generate(self, engine: AsyncLLM, task: LLMTask, rank: tuple[float, ...]) -> None:
        has_ended = False

        def emit(event: LLMEvent) -> None:
            nonlocal has_ended
            check_event(event)
            if event.task != task.id:
                raise BadReply(f"the engine answered task {event.task} instead of {task.id}")
            has_ended = has_ended or isinstance(event, Done | Failed)
            self._say(LLMReport(self._job.engine, self._job.instance, event))

        try:
            await engine.generate(task, emit, rank)
            if not has_ended:
                emit(Failed(task.id, BadReply("the engine ended without an answer")))
        except (Exception, *_DEADLY) as error:
            if self._tasks.get(task.id) is not asyncio.current_task():
                raise  # it was stopped, and nobody listens
            emit(Failed(task.id, typed(error)))
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
    match engine.runs_in:
        case "loop":
            if engine.is_llm:
                raise ConfigError(f"engine {engine.name!r}: an LLM cannot run on the event loop")
            return LoopInstance(job, say)
        case "thread":
            return ThreadInstance(job, say)
        case "process":
            return ProcessInstance(job, say)
    raise ConfigError(f"engine {engine.name!r}: there is no runs_in {engine.runs_in!r}")
