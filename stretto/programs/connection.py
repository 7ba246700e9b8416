"""Connection of a client to where its calls run: a runtime in the same process, or a service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.errors import StrettoError, UserError
from stretto.model.extras import imports_of
from stretto.model.record import record
from stretto.model.tasks import Criteria, Usage
from stretto.model.values import Failure
from stretto.programs.engine_checks import check_engines
from stretto.programs.fragment import Fragment, WaitingCall, Work, parts_of
from stretto.runtime.runtime import Runtime
from stretto.runtime.session import Session

T = TypeVar("T")


class ProgramSession(Protocol):
    """The session of a client: it holds the variables. Its methods belong to one event loop."""

    def provide(self, name: str, value: object) -> None:
        """Set a variable to a value, or to a `Failure`."""
        ...

    def drop(self, name: str) -> None:
        """Give a variable up: cancel the work that only serves it, and free its value."""
        ...

    def ask(
        self, name: str, criteria: Criteria | None = None, *, deadline_s: float | None = None
    ) -> Coroutine[Any, Any, object]:
        """Make a variable wanted at once, and return a coroutine that waits for it, which must be awaited.

        `deadline_s` is the number of seconds after which it gives up.
        """
        ...

    def stream(self, name: str, criteria: Criteria | None = None) -> AsyncIterator[str]:
        """Yield the text of a variable as it is generated."""
        ...

    def usage_of(self, name: str) -> Usage:
        """Return the tokens of the LLM requests that have made a variable."""
        ...

    def is_closed(self) -> bool:
        """Return whether the session has ended, so that it takes no more calls and values."""
        ...

    async def close(self) -> None:
        """End the session."""
        ...


class Connection(Protocol):
    """A connection to where calls run."""

    def run_on_loop(self, coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the event loop of the sessions, from code that is not asynchronous."""
        ...

    async def open_session(self) -> ProgramSession:
        """Open the session of the client."""
        ...

    def check(self, work: Work) -> None:
        """Check, before a call is submitted, that it can run, as far as that is known here. Raises
        StrettoError if it cannot.
        """
        ...

    def submit(self, calls: Sequence[WaitingCall], is_set: Callable[[str], bool]) -> None:
        """Submit calls together, as one fragment. One that is refused fails its own variables.

        `is_set` says of a variable whether the client has set it.
        """
        ...

    def usage(self, is_on_loop: bool) -> Usage:
        """Return the tokens of the session's LLM requests that have ended so far. `is_on_loop` says whether
        the caller runs on the event loop of the sessions.
        """
        ...

    async def ausage(self) -> Usage:
        """Return what `usage` does, on the event loop of the sessions."""
        ...

    def close(self) -> None:
        """Free what the connection holds, after its session has ended, in code that is not asynchronous."""
        ...


class InProcess:
    """A connection to a runtime in the same process.

    Args:
        options: keywords of `Runtime.open_session`.
    """

    def __init__(self, runtime: Runtime, options: Mapping[str, Any]) -> None:
        self._runtime = runtime
        self._options = options
        self._session: Session | None = None

    def run_on_loop(self, coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the event loop of the runtime, from code that is not asynchronous."""
        return self._runtime.run_on_loop(coroutine)

    async def open_session(self) -> Session:
        """Open the session of the client."""
        self._session = await self._runtime.open_session(**self._options)
        return self._session

    def check(self, work: Work) -> None:
        """Check that there are the engines that a call needs, and that its outputs fit them.

        Raises:
            ConfigError: there is no such engine, or it is of another kind.
            CapacityError: an output may be as long as what the LLM can hold, or longer.
        """
        check_engines(work, self._runtime.deployments)

    def submit(self, calls: Sequence[WaitingCall], is_set: Callable[[str], bool]) -> None:
        """Add calls to the session as one fragment. One that is refused fails its own variables."""
        assert self._session is not None
        try:
            extend(self._runtime, self._session, calls, is_set)
        except StrettoError as error:
            if len(calls) > 1:
                for call in calls:
                    self.submit([call], is_set)
                return
            for variable in calls[0].outputs.values():
                with suppress(UserError):  # the session has ended, and all its variables have failed
                    self._session.provide(variable, Failure(error.at(calls[0].work.name)))

    def usage(self, is_on_loop: bool = False) -> Usage:
        """Return the tokens of the session's LLM requests that have ended so far."""
        assert self._session is not None
        return self._session.usage

    async def ausage(self) -> Usage:
        """Return what `usage` does."""
        return self.usage()

    def close(self) -> None:
        """Do nothing: the runtime belongs to its own `with` block."""


def extend(
    runtime: Runtime, session: Session, calls: Sequence[WaitingCall], is_set: Callable[[str], bool]
) -> None:
    """Add calls to a session of a runtime, all or none: as one fragment, or, if they are many, as several,
    between which others have a turn.

    Raises:
        UserError: the graph of the calls does not fit the session or the runtime.
    """
    for planned in plan_all(runtime, session, calls, is_set):
        planned.add_to(session)


@record
class Planned:
    """A fragment with its compiled graph, and the names of the graph's inputs and outputs."""

    fragment: Fragment
    egraph: ExecutionGraph
    names: Sequence[str]

    def add_to(self, session: Session) -> None:
        """Add the fragment to a session. Raises UserError if it does not fit the session."""
        bind, values = self.fragment.bind(self.names)
        session.extend(self.egraph, bind, values=values)


def plan_all(
    runtime: Runtime, session: Session, calls: Sequence[WaitingCall], is_set: Callable[[str], bool]
) -> list[Planned]:
    """Return calls as fragments, with their compiled graphs. Nothing of the session changes, and any thread
    may do it.

    Raises:
        UserError: the graph of the calls does not fit the runtime.
    """
    found = []
    for part in parts_of(calls):
        fragment = Fragment(part, is_set)
        compiled = runtime.plan_cache.plan_form(fragment.form, fragment.build, session.passes)
        found.append(Planned(fragment, *compiled))
    return found


def connection_to(where: object, api_key: str, options: dict[str, Any]) -> Connection:
    """Return the connection to a runtime in this process, or to the service at a URL.

    Raises:
        UserError: `where` is neither, or a key was given for a runtime.
        ConfigError: packages for services are missing.
    """
    if isinstance(where, Runtime):
        if api_key:
            raise UserError("a runtime in the same process takes no api_key")
        return InProcess(where, options)
    if not isinstance(where, str):
        raise UserError(f"a client needs a Runtime or the URL of a service, got {where!r:.80}")
    with imports_of("client", "a client of a service"):
        from stretto.programs.at_service import AtService
    return AtService(where, api_key, options)
