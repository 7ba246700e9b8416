"""The calls of a client that wait until they are submitted together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stretto.programs.fragment import WaitingCall


class PendingCalls:
    """Calls that wait to be submitted as one fragment. Threads may add some at any time.

    Args:
        soon: lets a function run in the next turn of the event loop of the session.
        submit: submits calls.
    """

    def __init__(
        self, soon: Callable[[Callable[[], None]], None], submit: Callable[[list[WaitingCall]], None]
    ) -> None:
        self._soon = soon
        self._submit = submit
        self._lock = threading.Lock()
        self._calls: list[WaitingCall] = []
        self._num_holding = 0

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: WaitingCall) -> None:
        """Let a call wait until the next turn of the event loop, or until the end of a block of `held`."""
        with self._lock:
            self._calls.append(call)
            is_first = len(self._calls) == 1
        if is_first:
            self._soon(self._flush_unless_held)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Submit all calls that are made in this `with` block together, when it ends."""
        with self._lock:
            self._num_holding += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_holding -= 1
            self._soon(self._flush_unless_held)

    def flush(self) -> None:
        """Submit the calls that wait. A fragment that is refused fails its own variables."""
        with self._lock:
            calls, self._calls = self._calls, []
        if calls:
            self._submit(calls)

    def _flush_unless_held(self) -> None:
        if not self._num_holding:
            self.flush()
