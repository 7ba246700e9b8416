"""The apps as a careful engineer writes them with asyncio and the `openai` client.

All that is independent runs at once. Each text of the query expansion is used as soon as it has been written.
Texts that are known together are embedded in one request, and no passage is scored twice. LLM requests go to
the server with the fewest unanswered ones, and to another one if a server fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from benchmarks.fleet.programs.by_hand_servers import Servers, serving
from benchmarks.fleet.programs.passage_search import PassageSearch
from benchmarks.fleet.programs.running import Answer, Ask, run_program
from benchmarks.fleet.work import Asked, Passage, Work


class ByHand:
    """The apps of one work."""

    def __init__(self, work: Work, servers: Servers) -> None:
        self._prompts = work.prompts
        self._settings = work.settings
        self._servers = servers

    async def naive(self, asked: Asked) -> Answer:
        """Answer from each of the best passages, and combine the answers."""
        passages = _passages(asked)
        question, *vectors = await self._servers.embed([asked.question, *(p.text for p in passages)])
        hits = PassageSearch(passages, vectors).best(question, self._settings["top_k"])
        drafts = await asyncio.gather(
            *(self._write("answer", question=asked.question, context=hit.text) for hit in hits)
        )
        answer = await self._write("combine", question=asked.question, drafts="\n\n".join(drafts))
        return answer, tuple(hits)

    async def advanced(self, asked: Asked) -> Answer:
        """Search with several rewritten questions, score the hits, answer from the best, and refine."""
        index = asyncio.create_task(self._index(asked))
        scores: dict[Passage, asyncio.Future[float]] = {}
        async with asyncio.TaskGroup() as searches:
            async for query in self._rewritten(asked.question):
                searches.create_task(self._score(asked.question, query, index, scores))
        scored = [(await score, passage) for passage, score in scores.items()]
        scored.sort(key=lambda one: (-one[0], one[1].source, one[1].index))
        best = [passage for _, passage in scored[: self._settings["best"]]]
        draft = await self._write("answer", question=asked.question, context=best[0].text)
        for passage in best[1:]:
            draft = await self._write("refine", question=asked.question, context=passage.text, draft=draft)
        return draft, tuple(best)

    async def map_reduce(self, asked: Asked) -> Answer:
        """Summarise each passage, then groups of summaries, each as soon as its texts are there."""
        fan_in = self._settings["fan_in"]
        async with asyncio.TaskGroup() as calls:
            level = [calls.create_task(self._write("summarise", text=p.text)) for p in _passages(asked)]
            while len(level) > 1:
                groups = [level[start : start + fan_in] for start in range(0, len(level), fan_in)]
                level = [calls.create_task(self._merge(group)) for group in groups]
        return level[0].result(), ()

    async def _merge(self, texts: Sequence[asyncio.Task[str]]) -> str:
        return await self._write("merge", summaries="\n\n".join(await asyncio.gather(*texts)))

    async def _rewritten(self, question: str) -> AsyncIterator[str]:
        """Yield rewritten questions as they are written."""
        number = self._settings["num_queries"]
        prompt = self._prompts["expand"].format(question=question, num_queries=number)
        num_yielded = 0
        written = self._servers.write_list(prompt, self._settings["query_tokens"])
        async with aclosing(written):
            async for query in written:
                yield query
                num_yielded += 1
                if num_yielded == number:
                    return

    async def _score(
        self,
        question: str,
        query: str,
        index: asyncio.Task[PassageSearch],
        scores: dict[Passage, asyncio.Future[float]],
    ) -> None:
        """Search for a query, and score those hits that no other search has found before."""
        (vector,) = await self._servers.embed([query])
        hits = (await index).best(vector, self._settings["top_k"])
        new = [hit for hit in hits if hit not in scores]
        if not new:
            return
        own = {hit: asyncio.get_running_loop().create_future() for hit in new}
        scores |= own
        found = await self._servers.rerank(question, [hit.text for hit in new])
        for hit, score in zip(new, found, strict=True):
            own[hit].set_result(score)

    async def _index(self, asked: Asked) -> PassageSearch:
        passages = _passages(asked)
        return PassageSearch(passages, await self._servers.embed([passage.text for passage in passages]))

    async def _write(self, prompt: str, **variables: str) -> str:
        return await self._servers.write(
            self._prompts[prompt].format(**variables), self._settings["answer_tokens"]
        )


def _passages(asked: Asked) -> Sequence[Passage]:
    return [passage for document in asked.documents for passage in document.passages]


@asynccontextmanager
async def program(work: Work) -> AsyncIterator[Ask]:
    """Context with the function that answers the queries of a work."""
    async with serving(work) as servers:
        apps = ByHand(work, servers)
        yield {"naive": apps.naive, "advanced": apps.advanced, "map_reduce": apps.map_reduce}[work.app]


if __name__ == "__main__":
    run_program(program)
