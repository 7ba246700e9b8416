"""A running query as its caller sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from typing import Any, TypedDict

from stretto.apps.template import Configuration
from stretto.model.errors import UserError
from stretto.model.tasks import Ending, Objective, Usage
from stretto.runtime.home_process import HomeProcess
from stretto.sched.actions import Reply
from stretto.sched.snapshot import HeldPicture


class QueryOptions(TypedDict, total=False):
    """The choices of a caller for one query, as keywords of `Runtime.run` and its like.

    Attributes:
        configuration: settings of this query, by component of the app.
        passes: "weighed" (the default) for those passes that are
            predicted to pay at the present load, "all", "none", or names. Passes that are named are applied
            in any case.
        deadline_s: seconds from now after which the query ends with `DeadlineExceeded`.
        tenant: owner of the query. Caches are never shared between tenants.
        objective: "latency" has its requests served before those for "throughput" (the default), and keeps
            LLM instances that serve it less crowded, as they are configured. "offline" gives way to both: it
            gets what they leave, even within a step of an LLM.
        program: name of the program that the query is a part of, such as the session of an agent each of
            whose turns is a query. Its queries share a place in the order and room in KV memory. It is one
            among those of the tenant. Without a name, the query is a program by itself.
    """

    configuration: Configuration | None
    passes: str | Iterable[str]
    deadline_s: float | None
    tenant: str
    objective: Objective
    program: str


class Query:
    """A query, which is one run of an app: await it for its outputs by name, or iterate over `stream(output)`
    for text as it is generated.

    An output that no step has delivered, because the step was skipped, is `stretto.model.values.ABSENT`.

    Attributes:
        endings: once the query has its outputs, the ends of its LLM requests that did not end by themselves,
            such as those cut at their largest number of tokens.
        usage: tokens of all its LLM requests, once it has ended.

    Raises (when awaited or streamed):
        StrettoError: what ended the query; it names the step where there is one.
    """

    def __init__(
        self,
        query_id: str,
        cancel: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        held: Callable[[], list[HeldPicture]] = list,
    ) -> None:
        self.id = query_id
        self._held = held
        self._home = HomeProcess("the query")
        self._cancel = cancel
        self.endings: tuple[Ending, ...] = ()
        self.usage = Usage()
        self._reply: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self._pieces: dict[str, list[str]] = {}
        self._news = asyncio.Event()

    def __await__(self) -> Generator[Any, None, Mapping[str, Any]]:
        self._home.check()
        return asyncio.shield(self._reply).__await__()

    def cancel(self) -> None:
        """Cancel the query: it ends with `QueryCancelled`, unless it has ended already."""
        if not self.is_done():
            self._cancel()

    def held(self) -> list[HeldPicture]:
        """Return the LLM requests of the query that are held now, as there is no room in KV memory for what
        its program keeps there: since when, and why.
        """
        return self._held()

    def is_done(self) -> bool:
        """Return whether the query has ended."""
        return self._reply.done()

    async def stream(self, output: str) -> AsyncIterator[str]:
        """Yield the text of an output of the query as it is generated, in pieces that join to the whole,
        until the query ends.

        Raises:
            UserError: at the end, if there is no such output.
        """
        self._home.check()
        sent = num_pieces = 0
        while True:
            if pieces := self._pieces.get(output, [])[num_pieces:]:
                num_pieces += len(pieces)
                text = "".join(pieces)
                sent += len(text)
                yield text
                continue
            if self._reply.done():
                outputs = self._reply.result()
                if output not in outputs:
                    raise UserError(f"there is no output {output!r}; there are {', '.join(outputs)}")
                value = outputs[output]
                if isinstance(value, str) and len(value) > sent:
                    yield value[sent:]
                return
            self._news.clear()
            await self._news.wait()

    def on_text(self, output: str, text: str) -> None:
        """Add more text of an output, to be given to callers of `stream`. Called by the runtime."""
        self._pieces.setdefault(output, []).append(text)
        self._news.set()

    def on_reply(self, reply: Reply) -> None:
        """End the query with its outputs or its error. Called once, by the runtime."""
        self.usage = reply.usage
        if reply.error is not None:
            self._reply.set_exception(reply.error)
            self._reply.exception()
        else:
            self.endings = reply.endings
            self._reply.set_result(reply.outputs or {})
        self._news.set()


class StartedQuery:
    """A running query whose caller is told of its end, and of nothing else."""

    def __init__(self, query_id: str, on_end: Callable[[Reply], None]) -> None:
        self.id = query_id
        self.on_reply = on_end

    def on_text(self, output: str, text: str) -> None:
        """Do nothing: nobody reads the text before the end."""
