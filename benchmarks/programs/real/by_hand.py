"""The four apps as a careful engineer writes them with asyncio and the `openai` client.

All that is independent runs at once, connections are kept, and nothing waits in the program: a server queues
what it does not run yet. A conversation stays at the server that has its prefix in the cache. All else goes
to the server with the fewest unanswered requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.common.openai_client import openai_client
from benchmarks.programs.graphs import (
    BETWEEN,
    COMBINE,
    MERGE,
    MOST_TOKENS,
    RANKED,
    READ,
    REWRITE,
    SEARCHED,
    SUMMARISE,
    passages_for,
)
from benchmarks.programs.real.clock import RealRun
from benchmarks.programs.work import AGENT, CHAT, FAN_IN, MAP_REDUCE, RAG, MixedProgram, MixedQuery
from stretto.model.tasks import Usage

TIMEOUT_S = 900.0
"""Seconds that a client waits for an answer."""


class Servers:
    """Servers of one model, of which each request takes one."""

    def __init__(self, clients: Sequence[Any], model: str) -> None:
        self._clients = clients
        self._model = model
        self._num_open = [0] * len(clients)
        self._places: dict[str, int] = {}

    async def complete(
        self, prompt: str, conversation: str = "", max_tokens: int = MOST_TOKENS
    ) -> tuple[str, Usage]:
        """Return the answer to a prompt, and its tokens.

        Args:
            conversation: name of what keeps to one server; "" for a request of its own.
        """
        place = self._place(conversation)
        self._num_open[place] += 1
        try:
            completion = await self._clients[place].completions.create(
                model=self._model, prompt=prompt, max_tokens=max_tokens, temperature=0
            )
        finally:
            self._num_open[place] -= 1
        used = completion.usage
        details = used.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        return completion.choices[0].text, Usage(used.prompt_tokens, cached, used.completion_tokens)

    def _place(self, conversation: str) -> int:
        if conversation in self._places:
            return self._places[conversation]
        place = min(range(len(self._clients)), key=self._num_open.__getitem__)
        if conversation:
            self._places[conversation] = place
        return place


@asynccontextmanager
async def openai_servers(urls: Sequence[str], model: str) -> AsyncIterator[Servers]:
    """Context with servers that are reached by the `openai` client, one client for each.

    Raises:
        ConfigError: the package `openai` is not installed.
    """
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(openai_client(url, TIMEOUT_S)) for url in urls]
        yield Servers(clients, model)


class HandWritten:
    """The four apps. Notes the tokens of each call, and when it ended, in `found`."""

    def __init__(self, servers: Servers, found: RealRun) -> None:
        self._servers = servers
        self._found = found

    async def ask(self, program: MixedProgram, query: MixedQuery) -> str:
        """Run a query of a program, and return its answer."""
        if query.kind == RAG:
            return await self._rag(query.name, "".join(query.texts))
        if query.kind == MAP_REDUCE:
            return await self._map_reduce(query.name, query.texts)
        conversation = _CONVERSATIONS[query.kind](query.name)
        return await self._call(query.name, "text", 0, "".join(query.texts), conversation)

    async def _rag(self, name: str, question: str) -> str:
        rewritten = await self._call(name, "queries", 0, REWRITE.format(question=question))
        passages = await _rank(await _search(rewritten))
        readings = await asyncio.gather(
            *(
                self._call(name, "reading", number, READ.format(question=question, passage=passage))
                for number, passage in enumerate(passages)
            )
        )
        return await self._call(
            name, "answer", 0, MERGE.format(question=question, notes=BETWEEN.join(readings))
        )

    async def _map_reduce(self, name: str, passages: Sequence[str]) -> str:
        """Summarise each passage, then groups of summaries, each as soon as its texts are there."""
        num_merged = 0
        async with asyncio.TaskGroup() as calls:
            level = [
                calls.create_task(self._call(name, "summary", number, SUMMARISE.format(passage=passage)))
                for number, passage in enumerate(passages)
            ]
            while len(level) > 1:
                groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
                level = [
                    calls.create_task(self._merge(name, num_merged + place, group))
                    for place, group in enumerate(groups)
                ]
                num_merged += len(groups)
        return level[0].result()

    async def _merge(self, name: str, number: int, summaries: Sequence[asyncio.Task[str]]) -> str:
        texts = await asyncio.gather(*summaries)
        return await self._call(name, "merged", number, COMBINE.format(summaries=BETWEEN.join(texts)))

    async def _call(self, query: str, step: str, number: int, prompt: str, conversation: str = "") -> str:
        text, usage = await self._servers.complete(prompt, conversation)
        self._found.run.usages[query, step, number] = usage
        return text


async def _search(text: str) -> list[str]:
    await asyncio.sleep(SEARCHED.batch_s(1))
    return passages_for(text)


async def _rank(passages: list[str]) -> list[str]:
    await asyncio.sleep(RANKED.batch_s(1))
    return passages


def _without_turn(name: str) -> str:
    return name.rpartition("/")[0]


_CONVERSATIONS: Mapping[str, Any] = {CHAT: _without_turn, AGENT: _without_turn}
