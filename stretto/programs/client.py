"""Client of a runtime in the same process, or of a service.

It collects the calls of a program and submits them in fragments.

A client has one session. Calls wait until the event loop of the session has its next turn, so that calls
which a program makes one after the other go together; `together` makes sure of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import Token
from types import TracebackType
from typing import Any, TypeVar

from stretto.model.errors import UserError
from stretto.model.tasks import Criteria, Usage
from stretto.programs.connection import ProgramSession, connection_to
from stretto.programs.fragment import Work
from stretto.programs.ledger import Ledger
from stretto.programs.native_calls import NativeCalls
from stretto.programs.pending_calls import PendingCalls, made_call
from stretto.programs.values import checked_value
from stretto.programs.variable import CURRENT, ProgramClient, SemanticVariable, produced
from stretto.runtime.home_process import HomeProcess
from stretto.runtime.input_checks import check_deadline
from stretto.runtime.loop_thread import iterate_on
from stretto.runtime.runtime import Runtime

T = TypeVar("T")


class Client:
    """A client of a runtime, or of a service, in whose `with` or `async with` block semantic functions are
    called:

        with Runtime([llm_engine(None)]) as runtime, Client(runtime):
            print(joke("a student").get("latency"))

    `async with` is for code on the event loop of the runtime, or of a client of a service; `with` is for all
    other code. Leaving the block closes the session: variables that have no value then never get one.

    Args:
        where: a runtime in this process, or the URL of a service.
        api_key: key that the service asks for; "" for none.
        options: keywords of `Runtime.open_session`. A service takes all but `tenant`, which the key decides.
    """

    def __init__(self, where: Runtime | str, *, api_key: str = "", **options: Any) -> None:
        self._connection = connection_to(where, api_key, options)
        self._home: HomeProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: ProgramSession | None = None
        self.ledger = Ledger()
        self._pending = PendingCalls(
            self._soon, lambda calls: self._connection.submit(calls, self.ledger.is_set)
        )
        self._native = NativeCalls(self.ledger, self._opened, lambda name: self._get(name, None, None))
        self._token: Token[ProgramClient | None] | None = None

    def __enter__(self) -> Client:
        try:
            self._connection.run_on_loop(self._open)
        except BaseException:
            self._connection.close()
            raise
        self._token = CURRENT.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()
        try:
            self._connection.run_on_loop(self._close)
        finally:
            self._connection.close()

    async def __aenter__(self) -> Client:
        await self._open()
        self._token = CURRENT.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()
        await self._close()

    @property
    def usage(self) -> Usage:
        """Tokens of all LLM requests of this client that have ended so far: of their prompts, of the parts of
        prompts that were found in a cache, and of their outputs. A service is asked for them.

        Raises:
            UserError: the client has no session yet; or its calls run at a service, and the session has ended
                or the event loop of the client would wait here.
        """
        self._opened()
        return self._connection.usage(self._is_on_loop())

    async def ausage(self) -> Usage:
        """Return what `usage` says, in code on the event loop of a client of a service."""
        if self._opened().is_closed():  # its event loop may have ended with it
            return self._connection.usage(is_on_loop=False)
        return await self._on_loop(self._connection.ausage())

    def together(self) -> AbstractContextManager[None]:
        """Submit all calls that are made in this `with` block together, as one fragment, when it ends."""
        return self._pending.held()

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
        """Submit a call, and return the variables that it produces, by output.

        Args:
            inputs: variables or Python values by input.
            given: variables to use for outputs, where these exist already.
            each: input to each of whose items the call is applied.
            when: variable without whose value the call is skipped.

        Raises:
            UserError: a value cannot stand in a prompt, a given variable has a value already or is also an
                input, or calls would wait for each other in a circle.
            ConfigError: there is no engine that the call needs.
            CapacityError: an output may be as long as what the engine can hold, or longer.
        """
        if self._opened().is_closed():
            raise UserError(f"{work.name}: the session is closed")
        self._connection.check(work)
        call, results = made_call(self, work, inputs, outputs, given=given, each=each, when=when)
        self._pending.add(call)
        return results

    def run_native(
        self,
        name: str,
        variables: Sequence[SemanticVariable],
        run: Callable[[list[Any]], Coroutine[Any, Any, object]],
    ) -> SemanticVariable:
        """Wait for variables, then run a coroutine function with their values on the runtime's event loop;
        return the variable of its result.
        """
        reads = tuple(variable.name_in(self) for variable in variables)
        result = produced(self, name)
        made = result.name_in(self)
        self.ledger.note_native(made, reads)

        self._soon(lambda: self._native.begin(made, reads, run))
        return result

    def provide(self, name: str, value: object) -> None:
        """Set a variable to a value.

        Raises:
            UserError: it has one already, a call produces it, the value cannot stand in a prompt, or the
                session has ended.
        """
        value = checked_value(value, f"the variable {name!r}")
        if self._opened().is_closed():
            raise UserError(f"the variable {name!r} cannot be set: the session is closed")
        self.ledger.note_set(name)
        if self._is_on_loop():
            self._opened().provide(name, value)
        else:
            self._soon(lambda: self._opened().provide(name, value))

    def get(self, name: str, perf: Criteria | None, timeout_s: float | None) -> Any:
        """Wait for a variable from code that is not asynchronous; see `SemanticVariable.get`."""
        self._opened()
        if self._is_on_loop():
            raise UserError("get would block the runtime's own event loop; use `await variable`, or aget")
        return self._connection.run_on_loop(lambda: self._get(name, perf, timeout_s))

    async def aget(self, name: str, perf: Criteria | None, timeout_s: float | None) -> Any:
        """Wait for a variable; see `SemanticVariable.aget`."""
        self._opened()
        return await self._on_loop(self._get(name, perf, timeout_s))

    async def stream(self, name: str, perf: Criteria | None) -> AsyncIterator[str]:
        """Yield the text of a variable as it is generated; see `SemanticVariable.stream`."""
        if not self._is_on_loop():
            raise UserError(
                "text streams on the event loop of the runtime alone: use `async with Client(…)`, "
                "inside `async with Runtime(…)`"
            )
        self._pending.flush()
        async for piece in self._opened().stream(name, perf):
            yield piece

    def stream_sync(self, name: str, perf: Criteria | None) -> Iterator[str]:
        """Return an iterator over the text of a variable; see `SemanticVariable.stream_sync`."""
        self._opened()
        if self._is_on_loop():
            raise UserError("stream_sync would block the runtime's own event loop; use `async for`")

        async def start() -> AsyncIterator[str]:
            return self.stream(name, perf)

        return iterate_on(self._connection.run_on_loop, start)

    def usage_of(self, name: str) -> Usage:
        """Return the tokens that made a variable; see `SemanticVariable.usage`."""
        return self._opened().usage_of(name)

    def drop(self, name: str) -> None:
        """Give a variable up; see `SemanticVariable.drop`."""
        self.ledger.forget([name])

        def drop() -> None:
            self._pending.flush()
            self._native.give_up(name)

        self._soon(drop)

    async def _open(self) -> None:
        if self._session is not None:
            raise UserError("a client is entered once")
        self._home = HomeProcess("the client")
        self._loop = asyncio.get_running_loop()
        self._session = await self._connection.open_session()

    async def _close(self) -> None:
        self._native.cancel()
        await self._opened().close()

    def _opened(self) -> ProgramSession:
        if self._session is None or self._home is None:
            raise UserError("the client has no session yet: use it with `with` or `async with`")
        self._home.check()
        return self._session

    def _leave(self) -> None:
        if self._token is not None:
            with suppress(ValueError):  # entered in another context, such as that of a notebook's other cell
                CURRENT.reset(self._token)
            self._token = None

    def _soon(self, action: Callable[[], None]) -> None:
        """Run an action in the next turn of the event loop of the runtime, unless the session has ended."""
        session = self._opened()
        if session.is_closed():  # the loop may have ended, too
            return
        assert self._loop is not None

        def act() -> None:
            if not session.is_closed():
                action()

        if self._is_on_loop():
            self._loop.call_soon(act)
        else:
            self._loop.call_soon_threadsafe(act)

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    async def _on_loop(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that belongs to the event loop of the session, in code on any loop.

        Raises:
            UserError: that event loop has ended.
        """
        if self._is_on_loop():
            return await waiting
        assert self._loop is not None
        if self._loop.is_closed():
            waiting.close()
            raise UserError("the session is closed: its event loop has ended")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(waiting, self._loop))

    async def _get(self, name: str, perf: Criteria | None, timeout_s: float | None) -> object:
        check_deadline(timeout_s, "timeout_s")
        waiting = self._opened().ask(name, perf, deadline_s=timeout_s)
        self._pending.flush()  # after that, so that no call starts as if nobody wanted it
        return await waiting
