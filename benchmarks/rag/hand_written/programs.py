"""The three apps as asyncio programs: independent steps run at once, chunks stream through the engines.

Prompts, settings and answers are those of `stretto.apps`. Optimisations that need graphs or tokens are
missing: prefills before the end of the prompt is known, use of each rewritten question before all are
written, and batches ordered by the remaining work of queries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rag.hand_written.servers import Servers
from stretto.apps.components.prompt_segments import load_prompt, parse_prompt
from stretto.graph.graph import Constant
from stretto.graph.op_table import OPS
from stretto.model.tasks import Decode
from stretto.model.values import ABSENT, Document, Hit, Prompt, Segment, as_text

CHUNKING = {"tokens": 256, "overlap": 30}
NUM_QUERIES = 3
NUM_HITS = 3
TOP_K = {"naive": 3, "advanced": 16, "search": 4}


class HandWrittenProgram:
    """One query's run.

    Args:
        answer_tokens: largest number of tokens of an answer.
        batch: number of chunks that are embedded together.
        tenant: owner of the query. Caches are never shared between tenants.
    """

    def __init__(
        self, servers: Servers, query: str, answer_tokens: int, batch: int, tenant: str = ""
    ) -> None:
        self._servers = servers
        self._query = query
        self._answer = Decode(answer_tokens)
        self._batch = batch
        self._tenant = tenant

    async def naive(self, question: str, files: Sequence[Document]) -> dict[str, object]:
        """Run the app `naive_rag`."""
        (vector,), _ = await asyncio.gather(self._embed([question]), self._index(files))
        hits = await self._vectors("search", {"queries": [vector]}, {"k": TOP_K["naive"]})
        leaves = await asyncio.gather(
            *(
                self._complete("answer", {"question": question, "context": as_text(hit)}, self._answer)
                for hit in hits[0][:NUM_HITS]
            )
        )
        if not leaves:
            return {"answer": ABSENT, "sources": hits[0]}
        drafts = "\n\n".join(leaves)
        answer = await self._complete("combine", {"question": question, "drafts": drafts}, self._answer)
        return {"answer": answer, "sources": hits[0]}

    async def advanced(self, question: str, files: Sequence[Document]) -> dict[str, object]:
        """Run the app `advanced_rag`."""
        index = asyncio.create_task(self._index(files))
        queries = await self._complete(
            "expand",
            {"question": question},
            Decode(200, items="json_list", max_items=NUM_QUERIES),
            {"num_queries": NUM_QUERIES},
        )
        vectors = await self._embed(queries)
        await index
        found = await self._vectors("search", {"queries": vectors}, {"k": TOP_K["advanced"]})
        scored = await asyncio.gather(*(self._rerank(question, hits) for hits in found))
        evaluate = OPS["aggregate"].evaluate
        assert evaluate is not None
        top = evaluate({"scored": list(scored)}, {"best": NUM_HITS, "distinct": True})[""]
        assert isinstance(top, list)
        draft: Any = ABSENT
        for place, hit in enumerate(top):
            variables = {"question": question, "context": as_text(hit)}
            if place:
                variables["draft"] = draft
            draft = await self._complete("refine" if place else "answer", variables, self._answer)
        return {"answer": draft, "sources": top}

    async def search(self, question: str) -> dict[str, object]:
        """Run the app `search_empowered`."""
        draft = await self._complete("proxy", {"question": question}, self._answer, engine="llm_small")
        verdict = await self._complete(
            "judge", {"question": question, "text": draft}, Decode(4), engine="llm_small"
        )
        evaluate = OPS["condition"].evaluate
        assert evaluate is not None
        context, hits = draft, ABSENT
        if evaluate({"value": verdict}, {"equals": "yes"})["no"] is not ABSENT:
            web = self._servers.batch["web"]
            hits = await web.one(self._query, "web_search", {"queries": question}, {"k": TOP_K["search"]})
            context = "\n\n".join(as_text(hit) for hit in hits) if hits else draft
        answer = await self._complete("answer", {"question": question, "context": context}, self._answer)
        return {"answer": answer, "sources": hits}

    async def _index(self, files: Sequence[Document]) -> None:
        """Index documents; a batch of chunks is ingested as soon as it is embedded."""
        chunking = self._servers.batch["chunking"]
        lists = await asyncio.gather(
            *(chunking.each(self._query, "chunk", {"files": [file]}, CHUNKING) for file in files)
        )
        chunks = [chunk for (own,) in lists for chunk in own]
        pieces = [chunks[start : start + self._batch] for start in range(0, len(chunks), self._batch)]
        await asyncio.gather(*(self._store(piece) for piece in pieces))

    async def _store(self, chunks: Sequence[object]) -> None:
        vectors = await self._embed(chunks)
        await self._vectors("ingest", {"chunks": chunks, "vectors": vectors}, {})

    async def _embed(self, texts: Sequence[object]) -> Any:
        return await self._servers.batch["embedding"].each(self._query, "embed", {"texts": texts}, {})

    async def _vectors(
        self, op: str, columns: Mapping[str, Sequence[object]], config: Mapping[str, object]
    ) -> Any:
        return await self._servers.batch["vectors"].each(self._query, op, columns, config)

    async def _rerank(self, question: str, hits: Sequence[Hit]) -> Any:
        inputs = {"question": question, "hits": hits}
        return await self._servers.batch["reranking"].one(
            self._query, "rerank", inputs, {}, max(1, len(hits))
        )

    async def _complete(
        self,
        prompt: str,
        variables: Mapping[str, str],
        decode: Decode,
        constants: Mapping[str, object] | None = None,
        engine: str = "llm",
    ) -> Any:
        known = tuple((name, str(value)) for name, value in (constants or {}).items())
        parts = parse_prompt(load_prompt(prompt), frozenset(variables), known)
        segments: Prompt = tuple(
            Segment(part.text, role=part.role)
            if isinstance(part, Constant)
            else Segment(variables[part.port], part.port)
            for part in parts
        )
        return await self._servers.llm[engine].complete(self._query, prompt, segments, decode, self._tenant)
