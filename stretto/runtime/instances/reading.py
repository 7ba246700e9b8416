"""The unpickling of the messages of another process, which never makes the event loop wait.

A message made of the project's own classes unpickles at once, on the event loop; that costs no switch to
another thread. Any other may import a module or run somebody else's code, so it is left to a thread. The
messages behind it wait until it has come.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stretto.sched.messages import Event

_OWN = f"{__name__.partition('.')[0]}."


class _ForeignClass(Exception):
    """A message holds an object of a class that is not the project's own, or not imported yet."""


class _OwnClasses(pickle.Unpickler):
    """An unpickler that imports nothing, and runs no code of others."""

    def find_class(self, module: str, name: str) -> Any:
        if not (module.startswith(_OWN) and module in sys.modules):
            raise _ForeignClass
        return super().find_class(module, name)


class MessageReading:
    """The unpickling of the messages of one process. Events are received in the order of the calls of `read`.

    All calls are made on the event loop.

    Args:
        receive: called with each event.
        end: called once, after the last event: with the exception that a message has raised, or None if
            there are no more.
    """

    def __init__(
        self,
        receive: Callable[[Event], None],
        end: Callable[[BaseException | None], None],
        name: str,
    ) -> None:
        self._receive = receive
        self._end = end
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[bytes | None] = deque()
        self._is_waiting = False  # for the thread
        self._has_ended = False
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read(self, message: bytes | None) -> None:
        """Take a message; None if there are no more."""
        self._waiting.append(message)
        self._proceed()

    def close(self) -> None:
        """Receive nothing more, and let the thread end."""
        self._has_ended = True
        self._queue.put(None)

    def _proceed(self) -> None:
        while self._waiting and not self._is_waiting and not self._has_ended:
            message = self._waiting.popleft()
            if message is None:
                self._take(None)
                return
            outcome: Event | BaseException
            try:
                outcome = _OwnClasses(io.BytesIO(message)).load()
            except _ForeignClass:
                self._leave(message)
            except Exception as error:
                self._take(error)
            else:
                self._take(outcome)

    def _take(self, outcome: Event | BaseException | None) -> None:
        if outcome is None or isinstance(outcome, BaseException):
            self._has_ended = True
            self._end(outcome)
        else:
            self._receive(outcome)

    def _leave(self, message: bytes) -> None:
        """Leave a message to the thread, which is started if there is none."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._unpickle, name=self._name, daemon=True)
            self._thread.start()
        self._is_waiting = True
        self._queue.put(message)

    def _unpickle(self) -> None:
        while (message := self._queue.get()) is not None:
            outcome: Event | BaseException
            try:
                outcome = pickle.loads(message)
            except BaseException as error:  # also an exit that the code of some object asks for
                outcome = error
            with suppress(RuntimeError):  # the loop has ended, and nobody listens
                self._loop.call_soon_threadsafe(self._come_back, outcome)
            del outcome  # its values are freed while this thread waits for the next one

    def _come_back(self, outcome: Event | BaseException) -> None:
        self._is_waiting = False
        if not self._has_ended:
            self._take(outcome)
            self._proceed()
