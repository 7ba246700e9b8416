"""A running session (a query to which graphs can be added) as its caller sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import nullcontext
from types import TracebackType
from typing import Any

from stretto.apps.template import Configuration, Template
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph
from stretto.model.errors import DeadlineExceeded, UserError
from stretto.model.tasks import Criteria, Usage
from stretto.runtime.input_checks import (
    check_bind,
    check_criteria,
    check_deadline,
    check_value,
    check_values,
)
from stretto.runtime.session_state import NO_USAGE, SessionState, Slots
from stretto.runtime.session_variables import SessionVariable
from stretto.sched.messages import Close, Drop, Event, Extend, Provide, Unwant, Want

Plan = Callable[[Template | Graph | ExecutionGraph, Configuration | None], ExecutionGraph]


class Session:
    """A session: a query to which graphs are added while it is open; the graphs read and produce its named
    variables.

    `Runtime.open_session` makes it. Use it with `async with`: leaving closes it. Its methods belong to the
    runtime's event loop.

    A session holds a slot of the runtime while its graphs have variables to produce. It waits for none, and
    an idle one holds none.

    Attributes:
        passes: names of the optimisation passes for its graphs.
        state: variables and end of the session, which the runtime writes.
    """

    def __init__(
        self,
        query_id: str,
        post: Callable[[Event], None],
        plan: Plan,
        loop: asyncio.AbstractEventLoop,
        slots: Slots,
        passes: tuple[str, ...] = (),
        usage: Callable[[], Usage] = Usage,
    ) -> None:
        self.id = query_id
        self._post = post
        self._plan = plan
        self.passes = passes
        self._loop = loop
        self.state = SessionState(loop.create_future(), slots, usage)
        self._variables = self.state.variables

    @property
    def usage(self) -> Usage:
        """Tokens of the session's LLM requests that have ended so far."""
        return self.state.usage()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def extend(
        self,
        app: Template | Graph | ExecutionGraph,
        bind: Mapping[str, str] | None = None,
        *,
        configuration: Configuration | None = None,
        values: Mapping[str, object] | None = None,
    ) -> None:
        """Add a graph to the session; it starts to run as far as its inputs have values.

        Its inputs are variables, with or still without a value; its outputs become variables. One that would
        come of itself, through other graphs, fails.

        Args:
            app: a template or a graph, which is compiled with the passes of the session, or what that gave.
            bind: names of variables for inputs and outputs whose own names differ.
            configuration: settings of a template, by component.
            values: values of inputs that are no variables, by the names of the inputs.

        Raises:
            UserError: the graph does not fit: an engine is missing, it has no input or output that `bind`
                or `values` names, or a variable has a value already, or is read and produced by it.
        """
        self.state.check_open()
        egraph = self._plan(app, configuration)
        bind = {} if bind is None else bind
        values = {} if values is None else values
        check_bind(bind, egraph)
        check_values(values, egraph)
        read = dict.fromkeys([bind.get(name, name) for name in egraph.inputs if name not in values])
        made = [bind.get(name, name) for name, _, _ in egraph.outputs]
        if clash := next((name for name in made if name in read), None):
            raise UserError(f"{egraph.graph.name} reads and produces the variable {clash!r}")
        self._variables.claim(made)
        for name in made:
            self._variables.get(name).is_made = True
        self.state.note_to_come(len(made))
        for name in read:
            self._variables.get(name)
        self._post(Extend(self.id, egraph, dict(bind), values))

    def provide(self, name: str, value: object) -> None:
        """Set a variable of the session to a value, or to a `Failure`.

        Raises UserError if it has a value already, a graph produces it, or the value is nested too deep.
        """
        self.state.check_open()
        check_value(value, f"the variable {name!r}")
        self._variables.claim([name])
        self._post(Provide(self.id, name, value))

    def want(self, name: str, criteria: Criteria | None = None) -> None:
        """Make the work that produces a variable more urgent than work that no caller waits for, without
        waiting for it here.

        `criteria` ("latency" or "throughput"; None for those of the session) says how urgent it is, as in
        `get`.
        """
        self.state.check_open()
        check_criteria(criteria)
        self._variables.get(name)
        self._post(Want(self.id, name, criteria))

    async def get(
        self, name: str, criteria: Criteria | None = None, *, deadline_s: float | None = None
    ) -> object:
        """Wait for a variable of the session and return its value. If the value is a list, its items may be
        failures.

        The graph that produces it may be added later. A caller that stops waiting, at the deadline or by
        cancellation, cancels no work.

        Args:
            criteria: "latency" lets all work that produces the variable go before what is wanted for
                "throughput"; None for the objective of the session. Of several readers the strictest counts.
            deadline_s: seconds from now by which the value is needed; the less time that leaves, the earlier
                goes the work that produces it.

        Raises:
            StrettoError: what the variable has failed with.
            DeadlineExceeded: it has not come within `deadline_s` seconds.
            UserError: there are no such criteria, or the deadline is no number.
        """
        return await self.ask(name, criteria, deadline_s=deadline_s)

    def ask(
        self, name: str, criteria: Criteria | None = None, *, deadline_s: float | None = None
    ) -> Coroutine[Any, Any, object]:
        """Make a variable wanted at once, and return a coroutine that waits for it, which must be awaited.

        Work that a caller adds in between is wanted from its beginning. Arguments and errors are those of
        `get`.
        """
        check_criteria(criteria)
        check_deadline(deadline_s)
        variable = self._variables.get(name)
        if variable.has_come():
            return _result(variable)
        self.state.check_open()
        due_s = None if deadline_s is None else self._loop.time() + deadline_s
        want = Want(self.id, name, criteria, due_s)
        self._post(want)

        async def wait() -> object:
            try:
                async with nullcontext() if deadline_s is None else asyncio.timeout_at(want.deadline_s):
                    while not variable.has_come():
                        await variable.more()
            except TimeoutError:
                raise DeadlineExceeded(f"{want.name!r} has not come within {deadline_s:g} s") from None
            finally:
                if want.deadline_s is not None or not variable.has_come():  # its wants have ended with it
                    self._post(Unwant(self.id, want.name, want.criteria, want.deadline_s))
            return variable.result()

        return wait()

    async def stream(self, name: str, criteria: Criteria | None = None) -> AsyncIterator[str]:
        """Yield the text of a variable of the session as it is generated, in pieces that join to the whole.

        A value that is no text is yielded as it would stand in a prompt, when it is there. A variable whose
        step was skipped has no text.

        `criteria` ("latency" or "throughput"; None for those of the session) says how urgent it is, as in
        `get`.

        Raises:
            StrettoError: what the variable has failed with.
            UserError: its value has no text, for example an object of JSON.
        """
        check_criteria(criteria)
        variable = self._variables.get(name)
        if variable.has_come():
            async for piece in variable.texts():
                yield piece
            return
        self.want(name, criteria)
        try:
            async for piece in variable.texts():
                yield piece
        finally:
            if not variable.has_come():
                self._post(Unwant(self.id, name, criteria))

    def drop(self, name: str) -> None:
        """Give a variable of the session up: cancel the work that only serves it, and free its value. Its
        name may be used again.
        """
        self.state.check_open()
        if self._variables.drop(name):
            self._post(Drop(self.id, name))

    async def close(self) -> None:
        """End the session: variables without a value fail. A second call does nothing."""
        if not self.state.end.done():
            self._post(Close(self.id))
        await asyncio.shield(self.state.end)

    def is_settled(self, name: str) -> bool:
        """Return whether a variable has its value, or has failed."""
        variable = self._variables.known(name)
        return variable is not None and variable.has_come()

    def is_closed(self) -> bool:
        """Return whether the session has ended, so that it takes no more graphs and values."""
        return self.state.end.done()

    def usage_of(self, name: str) -> Usage:
        """Return the tokens of the LLM requests that have made a variable, once it has its value."""
        variable = self._variables.known(name)
        return NO_USAGE if variable is None else variable.usage


async def _result(variable: SessionVariable) -> object:
    """Return the value of a variable that has come. Raises what it has failed with."""
    return variable.result()
