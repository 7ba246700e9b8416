"""An instance in a process of its own, which has its own devices and can be killed when it hangs."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from stretto.model.errors import ConfigError, EngineFailure, EngineUnavailable
from stretto.model.foreign import described
from stretto.model.references import load_task
from stretto.model.tasks import Failed
from stretto.runtime.devices import LazyPickle
from stretto.runtime.instances.frames import READ_BYTES, Frames
from stretto.runtime.instances.instance import Post
from stretto.runtime.instances.outbox import Outbox
from stretto.runtime.instances.process_worker import ProcessStart, serve_process
from stretto.runtime.instances.reading import MessageReading
from stretto.runtime.instances.thread import CLOSE_TIMEOUT_S
from stretto.runtime.worker import AdmitTask, CloseEngine, Command, InstanceJob, RunBatch
from stretto.sched.engine_events import BatchFailed, InstanceLost, InstanceReady, LLMReport
from stretto.sched.messages import Event


class ProcessInstance:
    """An instance of an engine that runs in a spawned process.

    Raises:
        ConfigError: the executable or its configuration does not pickle.
    """

    def __init__(
        self,
        job: InstanceJob,
        post: Post,
        devices: Sequence[str] = (),
        threads: int | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = socket.socketpair()
        try:
            lazy = LazyPickle((job.executable, job.config))
            start = ProcessStart(devices, threads, replace(job, executable=_unopened, config=None), lazy)
            self._process = context.Process(target=serve_process, args=(start, theirs), daemon=True)
            self._process.start()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            self._pipe.close()
            raise ConfigError(f"cannot be sent to a process: {error}") from error
        except OSError:  # the machine has no process left, say
            self._pipe.close()
            raise
        finally:
            theirs.close()
        self._is_closing = False
        self._has_engine = False
        self._job, self._post = job, post
        name = f"{job.engine}/{job.instance}"
        self._outbox = Outbox(self._pipe, name, self._refuse)
        self._frames = Frames()
        self._reading = MessageReading(self._receive, self._lose, name)
        self._has_ended = asyncio.Event()
        self._loss: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._is_read = True
        self._loop.add_reader(self._pipe.fileno(), self._read)

    def send(self, command: Command) -> None:
        """Hand a command to the process, without waiting for anything."""
        try:
            sendable = self._sendable(command)
        except Exception as error:
            self._refuse(command, error)
            return
        with suppress(OSError):  # the process has died, as the reader will report
            self._outbox.send(sendable)

    async def close(self) -> None:
        """End the process and wait until it has ended. If it has an engine, it is asked to close it first."""
        self._is_closing = True
        if not self._has_engine:
            self._process.kill()
        self.send(CloseEngine())
        self._outbox.end()
        await asyncio.to_thread(self._end)
        with suppress(
            OSError
        ):  # a process that it has started holds the pipe, perhaps, and would keep it open
            self._pipe.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):  # the last events are unpickled
            await asyncio.wait_for(self._has_ended.wait(), CLOSE_TIMEOUT_S)
        self._stop_reading()
        self._reading.close()
        self._pipe.close()

    def kill(self) -> None:
        """Kill the process, whatever it does; `close` must be called afterwards."""
        self._is_closing = True
        self._process.kill()

    def _end(self) -> None:
        self._process.join(CLOSE_TIMEOUT_S)
        self._process.kill()
        self._process.join()
        self._outbox.join(CLOSE_TIMEOUT_S)

    def _sendable(self, command: Command) -> Command:
        """Return a command with the values that the process cannot fetch by itself."""
        if not isinstance(command, RunBatch):
            return command
        return RunBatch(command.batch, tuple(map(load_task, command.tasks)))

    def _refuse(self, command: Command, error: Exception) -> None:
        failure = EngineFailure(f"its inputs cannot be sent to a process: {described(error)}")
        engine, instance = self._job.engine, self._job.instance
        match command:
            case RunBatch(batch=batch):
                self._post(BatchFailed(engine, instance, batch, failure))
            case AdmitTask(task=task):
                self._post(LLMReport(engine, instance, Failed(task.id, failure)))
            case _:
                pass  # the others hold numbers and names, or are hints

    def _read(self) -> None:
        try:
            data = self._pipe.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._stop_reading()
            self._reading.read(None)
        for message in self._frames.feed(data):
            self._reading.read(message)

    def _stop_reading(self) -> None:
        if self._is_read:
            self._is_read = False
            self._loop.remove_reader(self._pipe.fileno())

    def _receive(self, event: Event) -> None:
        match event:
            case InstanceReady():
                self._has_engine = True
            case InstanceLost():
                self._is_closing = True
            case _:
                pass
        self._post(event)

    def _lose(self, error: BaseException | None) -> None:
        """End reading, and report that the instance is lost if it was not asked to end."""
        self._stop_reading()
        self._has_ended.set()
        how = "died"
        if error is not None:
            how = f"sent what cannot be read ({described(error)}) and was killed,"
            self._process.kill()
        if not self._is_closing:
            self._loss = self._loop.create_task(self._report_loss(how))

    async def _report_loss(self, how: str) -> None:
        job = self._job
        await asyncio.to_thread(self._process.join, CLOSE_TIMEOUT_S)
        if not self._is_closing:
            what = f"{job.engine}/{job.instance} {how} with exit code {self._process.exitcode}"
            self._post(InstanceLost(job.engine, job.instance, EngineUnavailable(what)))


def _unopened(_: object) -> object:
    raise AssertionError("the executable was not unpickled")
