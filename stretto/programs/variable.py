"""Semantic variables: named values that calls read and produce, and futures of what is still to come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

from stretto.model.errors import UserError
from stretto.model.tasks import Criteria, Usage
from stretto.model.values import AbsentType, Failure
from stretto.programs.fragment import Work
from stretto.programs.ledger import Ledger
from stretto.programs.values import checked_value

_UNSET: Any = object()


class SemanticVariable:
    """A semantic variable: a value that calls of semantic functions read, or that one of them produces.

    It belongs to the client in whose `with` block it is made or first used.

    Args:
        content: value of the variable, if it is known. Else `set` gives it one, or a call produces it.
        name: name of the variable for traces; unique in its client.

    Raises:
        UserError: the content cannot stand in a prompt, or the name cannot be used.

    Source: Parrot §4.1.
    """

    def __init__(self, content: object = _UNSET, *, name: str = "") -> None:
        self._content = content if content is _UNSET else checked_value(content, "the content of a variable")
        self._stem = name
        self._client: ProgramClient | None = None
        self._is_dropped = False
        self._name = ""
        self._read: Callable[[object], object] | None = None
        if (client := current_client()) is not None:
            self.name_in(client)

    def __repr__(self) -> str:
        return f"SemanticVariable({self._name or self._stem or 'without a client'})"

    def __format__(self, spec: str) -> str:
        """Refuse to stand in a text that Python makes, as the value is still to come.

        Raises:
            UserError: always.
        """
        raise UserError(f"{self!r} has no text yet: give it to a function as an argument, or use join")

    def __str__(self) -> str:
        """Refuse to become a text. Raises UserError, as an f-string with the variable does."""
        return self.__format__("")

    def __bool__(self) -> bool:
        """Refuse to be a condition, as the value is still to come.

        Raises:
            UserError: always.
        """
        raise UserError(f"{self!r} is no value: wait for that with get or await, or use P.condition")

    def __eq__(self, other: object) -> bool:
        """Return whether the other one is this variable.

        Raises:
            UserError: the other one is a value, which the value of this variable is compared with, but that
                is still to come.
        """
        if isinstance(other, SemanticVariable):
            return self is other
        if isinstance(other, str | int | float | list | tuple | dict):
            raise UserError(f"{self!r} is no value: wait for that with get or await, or use P.condition")
        return NotImplemented

    __hash__ = object.__hash__

    def get(self, perf: Criteria | None = None, *, timeout_s: float | None = None) -> Any:
        """Wait for the value and return it, from code that is not asynchronous.

        Args:
            perf: what the application wants of all work that produces the value: "latency" or "throughput";
                or what it wants of the text: that it begins soon ("first_token"), or that it comes fast once
                it has begun ("time_per_token").
            timeout_s: seconds after which to give up. The work goes on.

        Raises:
            StrettoError: what the variable has failed with; it names the step.
            DeadlineExceeded: the value has not come in time.
            UserError: it is called on the event loop of the runtime, or `perf` is unknown.
        """
        return self._as_read(self._bound().get(self._name, perf, timeout_s))

    async def aget(self, perf: Criteria | None = None, *, timeout_s: float | None = None) -> Any:
        """Wait for the value and return it. The arguments and errors are those of `get`; any event loop will
        do.
        """
        return self._as_read(await self._bound().aget(self._name, perf, timeout_s))

    def read_as(self, read: Callable[[object], object], *, is_list: bool) -> None:
        """Let `get` and `await` return what `read` makes of the value, or of each item of a list. Calls that
        read the variable get the value itself.
        """
        self._read = partial(_each, read) if is_list else read

    def _as_read(self, value: object) -> object:
        return value if self._read is None or isinstance(value, AbsentType) else self._read(value)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aget().__await__()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.stream()

    def stream(self, perf: Criteria | None = None) -> AsyncIterator[str]:
        """Return an iterator over the text of the variable as it is generated, in pieces that join to the
        whole. It belongs to the event loop of the runtime.
        """
        return self._bound().stream(self._name, perf)

    def stream_sync(self, perf: Criteria | None = None) -> Iterator[str]:
        """Return an iterator over the text of the variable as it is generated, for code that is not
        asynchronous.

        Raises:
            UserError: it is called on the event loop of the runtime.
        """
        return self._bound().stream_sync(self._name, perf)

    @property
    def usage(self) -> Usage:
        """Tokens of the LLM requests that have made the value, once it is there: those of its own call, also
        of replies that did not fit, and not those behind the variables that the call has read.

        Raises:
            UserError: the calls of its client run at a service, which tells no tokens of single variables.
        """
        return self._bound().usage_of(self._name)

    def set(self, value: object) -> None:
        """Give the variable its value.

        Raises:
            UserError: it has one already, a call produces it, or the value cannot stand in a prompt.
        """
        self._bound().provide(self._name, value)

    def drop(self) -> None:
        """Give the variable up: cancel work that serves nothing else, and free its value. It cannot be used
        any more; calls that read it already still get its value.
        """
        self._bound().drop(self._name)
        self._is_dropped = True

    def name_in(self, client: ProgramClient) -> str:
        """Return the name of the variable in the session of a client, which it belongs to from now on.

        Raises:
            UserError: it belongs to another client, was dropped, or its name or value cannot be used.
        """
        if self._is_dropped:
            raise UserError(f"the variable {self._name!r} was dropped")
        if self._client is None:
            self._name = client.ledger.names.new(self._stem or "variable", is_given=bool(self._stem))
            self._client = client
            if self._content is not _UNSET:
                client.provide(self._name, self._content)
                self._content = _UNSET
        elif self._client is not client:
            raise UserError(f"the variable {self._name!r} belongs to another client")
        return self._name

    def _bound(self) -> ProgramClient:
        if self._client is None:
            client = current_client()
            if client is None:
                raise UserError("a variable is used without a client: write `with Client(runtime):` around")
            self.name_in(client)
        assert self._client is not None
        self.name_in(self._client)
        return self._client


def _each(read: Callable[[object], object], values: object) -> object:
    if not isinstance(values, list):
        return read(values)
    return [one if isinstance(one, AbsentType | Failure) else read(one) for one in values]


def produced(client: ProgramClient, stem: str) -> SemanticVariable:
    """Return a new variable of a client, for the output of a call."""
    variable = SemanticVariable.__new__(SemanticVariable)
    variable._content, variable._stem, variable._client, variable._is_dropped = _UNSET, stem, client, False
    variable._name, variable._read = client.ledger.names.new(stem), None
    return variable


class ProgramClient(Protocol):
    """What variables and calls need of the client that they belong to; `Client` is the one there is."""

    @property
    def ledger(self) -> Ledger:
        """The variables of the client, and what produces each."""

    def call(
        self,
        work: Work,
        inputs: Mapping[str, object],
        outputs: Sequence[str],
        *,
        given: Mapping[str, SemanticVariable] | None = None,
        each: str | None = None,
        when: SemanticVariable | None = None,
    ) -> dict[str, SemanticVariable]:
        """Submit a call, and return the variables that it produces, by output."""

    def run_native(
        self,
        name: str,
        variables: Sequence[SemanticVariable],
        run: Callable[[list[Any]], Coroutine[Any, Any, object]],
    ) -> SemanticVariable:
        """Run a coroutine function with the values of variables, and return the variable of its result."""

    def provide(self, name: str, value: object) -> None:
        """Set a variable to a value."""

    def get(self, name: str, perf: Criteria | None, timeout_s: float | None) -> Any:
        """Wait for a variable from code that is not asynchronous."""

    async def aget(self, name: str, perf: Criteria | None, timeout_s: float | None) -> Any:
        """Wait for a variable."""

    def stream(self, name: str, perf: Criteria | None) -> AsyncIterator[str]:
        """Return an iterator over the text of a variable as it is generated."""

    def stream_sync(self, name: str, perf: Criteria | None) -> Iterator[str]:
        """Return an iterator over the text of a variable, for code that is not asynchronous."""

    def usage_of(self, name: str) -> Usage:
        """Return the tokens of the LLM requests that have made a variable."""
        ...

    def drop(self, name: str) -> None:
        """Give a variable up."""


CURRENT: ContextVar[ProgramClient | None] = ContextVar("current client", default=None)
"""The client whose `with` block is being executed: calls of semantic functions go there.

It is kept for each thread and each task of asyncio, so that programs of several clients run side by side.
"""


def current_client() -> ProgramClient | None:
    """Return the client in whose `with` block this is called; None outside of any."""
    return CURRENT.get()


def needed_client(function: str) -> ProgramClient:
    """Return the client in whose `with` block this is called.

    Raises:
        UserError: there is none; the message names the function that needs it.
    """
    if (client := CURRENT.get()) is None:
        raise UserError(f"{function} is called without a client: write `with Client(runtime):` around it")
    return client
