"""Runs the calls of a request through the runtime, each as a query of its own; collects or streams them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.one_call import CallGraphs, inputs_of_call
from stretto.http.client.headers import Headers
from stretto.model.errors import StrettoError
from stretto.model.tasks import Ending, Finish, Objective, Usage
from stretto.router.told_headers import held_header
from stretto.runtime.query import Query
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Reply
from stretto.service.openai.waits import QueryWaits
from stretto.service.openai.wanted import WantedText
from stretto.wire.answers import TokenCounts

_MANY_MESSAGES = 100
"""Number of messages from which on a new graph is compiled in a thread."""
_ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The answer of one call.

    Attributes:
        usage: tokens of the call.
        finish: how the text has ended, in OpenAI's words.
    """

    text: str
    usage: Usage
    finish: str


@dataclass(frozen=True, slots=True)
class CallOwner:
    """The owner of calls: a tenant and its program, and what the calls are served for.

    Attributes:
        told: headers of their answer, which get how long the calls have waited.
    """

    tenant: str
    program: str
    objective: Objective
    told: Headers


class Generator:
    """Runs calls of LLMs through a runtime.

    Args:
        waits: an observer of the runtime; with None, no waits are told.
    """

    def __init__(self, runtime: Runtime, waits: QueryWaits | None = None) -> None:
        self._runtime = runtime
        self._waits = waits or QueryWaits()
        self._graphs = CallGraphs()

    async def whole(self, engine: str, wanted: WantedText, caller: CallOwner) -> list[GeneratedText]:
        """Return all answers. If one fails, or nobody waits any more, the others are cancelled.

        Raises:
            StrettoError: what one of them has failed with.
        """
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Reply]] = []
        cancels = []
        try:
            for graph, inputs in await self._calls(engine, wanted):
                reply: asyncio.Future[Reply] = loop.create_future()
                replies.append(reply)
                tell = partial(_tell, reply)
                cancels.append(self._runtime.start(graph, inputs, tell, passes="none", **_options(caller)))
            for reply in replies:
                if (error := (await reply).error) is not None:
                    raise error
            ended = [reply.result() for reply in replies]
            self._tell_wait((reply.query for reply in ended), caller)
            return [_generated(reply, wanted) for reply in ended]
        finally:
            for reply, cancel in zip(replies, cancels, strict=False):
                if not reply.done() or reply.cancelled():
                    cancel()

    async def streamed(
        self, engine: str, wanted: WantedText, caller: CallOwner
    ) -> AsyncGenerator[tuple[int, str | GeneratedText], None]:
        """Yield pieces of text with the number of their answer, and each answer when it has ended.

        Raises:
            StrettoError: what one of them has failed with; the others are cancelled.
        """
        queries: list[Query] = []
        has_begun = False
        try:
            for graph, inputs in await self._calls(engine, wanted):
                queries.append(self._runtime.try_submit(graph, inputs, passes="none", **_options(caller)))
            async for number, piece in merged([query.stream(_ANSWER) for query in queries]):
                if not has_begun:
                    has_begun = True
                    self._tell_wait((query.id for query in queries), caller)
                if piece is not None:
                    yield number, piece
                    continue
                query = queries[number]
                outputs = await query
                reply = Reply(query.id, outputs, None, query.usage, query.endings)
                yield number, _generated(reply, wanted)
        finally:
            for query in queries:
                query.cancel()

    def _tell_wait(self, queries: Iterable[str], caller: CallOwner) -> None:
        """Tell the longest wait of those queries that have been sent to an engine."""
        waits = [waited_s for query in queries if (waited_s := self._waits.of(query)) is not None]
        if waits:
            caller.told.append(held_header(max(waits)))

    async def _calls(
        self, engine: str, wanted: WantedText
    ) -> Sequence[tuple[ExecutionGraph, Mapping[str, object]]]:
        def make() -> Sequence[tuple[ExecutionGraph, Mapping[str, object]]]:
            prompts = [prompt for prompt in wanted.prompts for _ in range(wanted.n)]
            return [
                (self._graphs.of(engine, prompt, wanted.decode_of(choice)), inputs_of_call(prompt))
                for choice, prompt in enumerate(prompts)
            ]

        if max(map(len, wanted.prompts)) * wanted.num_choices > _MANY_MESSAGES:
            return await asyncio.to_thread(make)
        return make()


async def merged(streams: Sequence[AsyncIterator[str]]) -> AsyncIterator[tuple[int, str | None]]:
    """Yield the pieces of several texts as they come, each with the number of its text; None ends a text.

    Raises:
        StrettoError: what a text has failed with.
    """
    if len(streams) == 1:
        async for text in streams[0]:
            yield 0, text
        yield 0, None
        return
    pieces: asyncio.Queue[tuple[int, str | StrettoError | None]] = asyncio.Queue()

    async def read(number: int, stream: AsyncIterator[str]) -> None:
        try:
            async for piece in stream:
                pieces.put_nowait((number, piece))
        except StrettoError as error:
            pieces.put_nowait((number, error))
        else:
            pieces.put_nowait((number, None))

    readers = [asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)]
    try:
        num_open = len(readers)
        while num_open:
            number, piece = await pieces.get()
            if isinstance(piece, StrettoError):
                raise piece
            num_open -= piece is None
            yield number, piece
    finally:
        for reader in readers:
            reader.cancel()


def counts_of(answers: Sequence[GeneratedText], n: int) -> TokenCounts:
    """Return the token counts of a request with `n` answers to each prompt. A prompt counts once."""
    firsts = answers[::n]
    return TokenCounts(
        sum(one.usage.num_prompt_tokens for one in firsts),
        sum(one.usage.num_output_tokens for one in answers),
        sum(one.usage.num_cached_tokens for one in firsts),
    )


def finish_of(endings: Sequence[Ending], usage: Usage, max_tokens: int | None) -> str:
    """Return how a text has ended, in OpenAI's words. `endings` are those that did not end by themselves."""
    finish: Finish = endings[-1].finish if endings else "stop"
    if finish == "thoughts":
        return "length" if max_tokens is not None and usage.num_output_tokens >= max_tokens else "stop"
    return finish


def _generated(reply: Reply, wanted: WantedText) -> GeneratedText:
    text = (reply.outputs or {})[_ANSWER]
    assert isinstance(text, str)
    return GeneratedText(text, reply.usage, finish_of(reply.endings, reply.usage, wanted.max_tokens))


def _tell(reply: asyncio.Future[Reply], ended: Reply) -> None:
    if not reply.done():
        reply.set_result(ended)


def _options(caller: CallOwner) -> Any:
    return {"tenant": caller.tenant, "program": caller.program, "objective": caller.objective}
