"""What runs in the process of an instance, and its way to the runtime."""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from stretto.model.errors import BadReply, EngineFailure
from stretto.model.foreign import described
from stretto.runtime.devices import LazyPickle, claim
from stretto.runtime.instances.frames import READ_BYTES, Frames, framed
from stretto.runtime.worker import CloseEngine, Command, InstanceJob, not_started, run_instance
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceLost
from stretto.sched.messages import Event


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """The data that a process starts with: its devices, to be taken before the executable is unpickled."""

    devices: Sequence[str]
    threads: int | None
    job: InstanceJob
    executable_and_config: LazyPickle


def serve_process(start: ProcessStart, pipe: socket.socket) -> None:
    """Run an instance in this process from its start to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes this process
    mail = Mail(pipe)
    try:
        claim(start.devices, start.threads)
        executable, config = start.executable_and_config.open()
    except BaseException as error:
        mail.post(not_started(start.job, error))
        return
    run_instance(replace(start.job, executable=executable, config=config), mail, mail.post)
    _end_at_once()


def _end_at_once() -> None:
    """End this process without the interpreter's clean-up.

    It takes 0.7 s where PyTorch is loaded, in which the next replica waits for the devices of this one.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Mail:
    """The commands for this process, and its events to the runtime.

    Events are sent together when the process looks for commands, as it does after each batch or step; that an
    instance is lost is sent at once.
    """

    def __init__(self, pipe: socket.socket) -> None:
        pipe.settimeout(None)  # whatever the program has set as default for its own sockets
        self._pipe = pipe
        self._readable = select.poll()
        self._readable.register(pipe.fileno(), select.POLLIN)
        self._frames = Frames()
        self._commands: deque[bytes] = deque()
        self._events: list[bytes] = []

    def get(self) -> Command:
        """Wait for the next command, and return it; `CloseEngine` if the runtime has ended."""
        self._send_events()
        while not self._commands:
            try:
                data = self._pipe.recv(READ_BYTES)
            except ConnectionError:  # it ended without having read all events
                data = b""
            if not data:
                return CloseEngine()
            self._commands += self._frames.feed(data)
        command: Command = pickle.loads(self._commands.popleft())
        return command

    def empty(self) -> bool:
        """Return whether no command waits."""
        self._send_events()
        return not self._commands and not self._readable.poll(0)

    def post(self, event: Event) -> None:
        """Pickle an event, to be sent soon."""
        self._events.append(framed(self._pickled(event)))
        if isinstance(event, InstanceLost):
            self._send_events()

    def _send_events(self) -> None:
        if self._events:
            data = b"".join(self._events)
            self._events.clear()
            with suppress(ConnectionError):  # the runtime has ended, as `get` finds out
                self._pipe.sendall(data)

    def _pickled(self, event: Event) -> bytes:
        try:
            return pickle.dumps(event)
        except Exception as error:
            match event:
                case BatchFailed(error=of_engine):
                    failure = EngineFailure(described(of_engine), step=of_engine.step)
                case BatchDone():
                    failure = BadReply(f"its results cannot leave the process: {described(error)}")
                case _:
                    raise
            return pickle.dumps(BatchFailed(event.engine, event.instance, event.batch, failure))
