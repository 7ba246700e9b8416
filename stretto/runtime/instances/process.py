"""An instance in a process of its own, which has its own devices and can be killed when it hangs."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from stretto.errors import BadReply, ConfigError, EngineFailure, EngineUnavailable
from stretto.messages import BatchDone, BatchFailed, Event, InstanceLost
from stretto.references import load_task
from stretto.runtime.devices import Sealed, claim
from stretto.runtime.instances.instance import Post
from stretto.runtime.instances.outbox import Outbox
from stretto.runtime.instances.thread import CLOSE_TIMEOUT_S
from stretto.runtime.shared_memory import Region, Segment, SharedMemory, Writer
from stretto.runtime.worker import CloseEngine, Command, Job, RunBatch, not_started, serve


@dataclass(frozen=True, slots=True)
class _Start:
    """The data that a process starts with: its devices, to be taken before the executable is unpickled."""

    devices: Sequence[str]
    threads: int | None
    job: Job
    executable_and_config: Sealed
    memory: Region | Writer | None  # pickled as a region, it arrives as a writer


class ProcessInstance:
    """An instance of an engine that runs in a spawned process.

    Args:
        memory: where it leaves large results and finds those of others; without it, they are sent.

    Raises:
        ConfigError: the executable or its configuration does not pickle.
    """

    def __init__(
        self,
        job: Job,
        post: Post,
        devices: Sequence[str] = (),
        threads: int | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        self._region = None if memory is None else memory.region()
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        try:
            sealed = Sealed((job.executable, job.config))
            start = _Start(
                devices, threads, replace(job, executable=_unopened, config=None), sealed, self._region
            )
            self._process = context.Process(target=_serve_process, args=(start, theirs), daemon=True)
            self._process.start()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            self._ours.close()
            raise ConfigError(f"cannot be sent to a process: {error}") from error
        finally:
            theirs.close()
        self._is_closing = False
        self._job, self._post = job, post
        name = f"{job.engine}/{job.instance}"
        self._outbox = Outbox(self._ours, name)
        self._receiver = threading.Thread(target=self._receive_events, name=name, daemon=True)
        self._receiver.start()

    def send(self, command: Command) -> None:
        """Hand a command (such as to run a batch) to the process, without waiting for anything."""
        try:
            message = pickle.dumps(self._sendable(command))
        except Exception as error:
            assert isinstance(command, RunBatch)
            failure = EngineFailure(f"its inputs cannot be sent to a process: {error}")
            self._post(BatchFailed(self._job.engine, self._job.instance, command.batch, failure))
            return
        with suppress(OSError):  # the process has died, as the receiver will report
            self._outbox.send(message)

    async def close(self) -> None:
        """End the process and wait until it has ended. It is asked to close its engine first."""
        self._is_closing = True
        self.send(CloseEngine())
        self._outbox.end()
        await asyncio.to_thread(self._end)

    def kill(self) -> None:
        """Kill the process, whatever it does; `close` must be called afterwards."""
        self._is_closing = True
        self._process.kill()

    def _end(self) -> None:
        self._process.join(CLOSE_TIMEOUT_S)
        self._process.kill()
        self._process.join()
        self._outbox.join(CLOSE_TIMEOUT_S)
        self._receiver.join(CLOSE_TIMEOUT_S)
        self._ours.close()
        if self._region is not None:
            self._region.close()

    def _sendable(self, command: Command) -> Command:
        """Return a command with the values that the process cannot fetch by itself."""
        if not isinstance(command, RunBatch):
            return command
        fetched = None if self._region is None else Segment
        return RunBatch(command.batch, tuple(load_task(task, but=fetched) for task in command.tasks))

    def _receive_events(self) -> None:
        job, post = self._job, self._post
        loads = pickle.loads if self._region is None else self._region.loads
        while True:
            try:
                event = loads(self._ours.recv_bytes())
            except (EOFError, OSError):
                how = "died"
                break
            except Exception as error:
                how = f"sent what cannot be read ({type(error).__name__}: {error}) and was killed,"
                self._process.kill()
                break
            post(event)
            if isinstance(event, InstanceLost):
                return
            del event  # its values are freed while this thread waits for the next one
        if not self._is_closing:
            self._process.join(CLOSE_TIMEOUT_S)
            what = f"{job.engine}/{job.instance} {how} with exit code {self._process.exitcode}"
            post(InstanceLost(job.engine, job.instance, EngineUnavailable(what)))


class _PipeInbox:
    def __init__(self, connection: Connection, memory: Writer | None) -> None:
        self._connection = connection
        self._loads = pickle.loads if memory is None else memory.loads

    def get(self) -> Command:
        try:
            command: Command = self._loads(self._connection.recv_bytes())
        except EOFError:
            return CloseEngine()
        return command

    def empty(self) -> bool:
        return not self._connection.poll()


def _unopened(_: object) -> object:
    raise AssertionError("the executable was not unsealed")


def _serve_process(start: _Start, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes this process
    memory = start.memory
    assert not isinstance(memory, Region)

    def post(event: Event) -> None:
        try:
            if memory is not None and isinstance(event, BatchDone):
                event = replace(event, results=memory.leave(event.results))
            message = pickle.dumps(event)
        except Exception as error:
            if not isinstance(event, BatchDone):
                raise
            if memory is not None:
                memory.take_back()
            failure = BadReply(f"its results cannot leave the process: {error}")
            message = pickle.dumps(BatchFailed(event.engine, event.instance, event.batch, failure))
        connection.send_bytes(message)

    try:
        claim(start.devices, start.threads)
        executable, config = start.executable_and_config.open()
    except BaseException as error:
        post(not_started(start.job, error))
        return
    serve(replace(start.job, executable=executable, config=config), _PipeInbox(connection, memory), post)
