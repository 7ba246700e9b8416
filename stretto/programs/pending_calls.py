"""Makes the calls of a client, which wait until they are submitted together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from stretto.model.errors import UserError
from stretto.programs.fragment import WaitingCall, Work
from stretto.programs.values import checked_value
from stretto.programs.variable import ProgramClient, SemanticVariable, produced


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


def made_call(
    client: ProgramClient,
    work: Work,
    inputs: Mapping[str, object],
    outputs: Sequence[str],
    *,
    given: Mapping[str, SemanticVariable] | None,
    each: str | None,
    when: SemanticVariable | None,
) -> tuple[WaitingCall, dict[str, SemanticVariable]]:
    """Return a call, which the client's ledger has noted, and the variables that it produces, by output.

    Raises:
        UserError: see `Client.call`.
    """
    if when is not None and not isinstance(when, SemanticVariable):
        raise UserError(f"{work.name}: when must be a SemanticVariable, got {when!r:.80}")
    constants = {
        name: checked_value(value, f"{work.name}: {name}")
        for name, value in inputs.items()
        if not isinstance(value, SemanticVariable)
    }
    guard = None if when is None else when.name_in(client)
    known = given or {}
    made = {name: variable.name_in(client) for name, variable in known.items()}
    read = {
        name: value.name_in(client) if isinstance(value, SemanticVariable) else None
        for name, value in inputs.items()
    }
    results = {name: known[name] if name in known else produced(client, name) for name in outputs}
    produces = {name: variable.name_in(client) for name, variable in results.items()}
    call = WaitingCall(work, read, produces, constants, each, guard)
    client.ledger.note_call(call, made)
    return call, results
