"""Clients of the servers for a hand-written program, and a choice of LLM servers."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import openai
from numpy.typing import NDArray

from benchmarks.fleet.work import Work

_MAX_CONNECTIONS = 2000
_AVOIDED_S = 2.0
"""Seconds for which a server that has failed is chosen only if all have."""
_MAX_TRIES = 40
_PAUSE_S = 0.25
"""Seconds between two tries if all servers have failed."""
_FAILURES = (openai.APIConnectionError, openai.InternalServerError, openai.APIError)


class LLMServer:
    """One LLM server: its client, its unanswered requests, and when it may be chosen again."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self.client = client
        self.num_unanswered = 0
        self.avoided_until_s = 0.0


class Servers:
    """All servers of a work.

    Args:
        llms: the LLM servers; a request goes to one of them.
        embedding, reranking: clients of the other servers. They try again by themselves.
    """

    def __init__(
        self,
        model: str,
        llms: Sequence[LLMServer],
        embedding: openai.AsyncOpenAI,
        reranking: openai.AsyncOpenAI,
    ) -> None:
        self._model = model
        self._llms = list(llms)
        self._embedding = embedding
        self._reranking = reranking

    async def embed(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return the vectors of texts."""
        body = {"model": "", "input": list(texts), "encoding_format": "base64"}
        found = await _post(self._embedding, "/embeddings", body)
        vectors = {row["index"]: _vector(row["embedding"]) for row in found["data"]}
        return [vectors[index] for index in range(len(texts))]

    async def rerank(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return how well each text answers a question."""
        body = {"query": question, "documents": list(texts), "return_documents": False}
        found = await _post(self._reranking, "/rerank", body)
        scores = {row["index"]: float(row["relevance_score"]) for row in found["results"]}
        return [scores[index] for index in range(len(texts))]

    async def write(self, prompt: str, max_tokens: int) -> str:
        """Return the continuation of a prompt."""
        for number in range(_MAX_TRIES):
            server = self._choose()
            try:
                found = await _post(server.client, "/completions", self._completion(prompt, max_tokens))
                text: str = found["choices"][0]["text"]
                return text.strip()
            except _FAILURES as error:
                await self._failed(server, error, number)
            finally:
                server.num_unanswered -= 1
        raise AssertionError

    async def write_list(self, prompt: str, max_tokens: int) -> AsyncGenerator[str, None]:
        """Yield the texts of a JSON list as they are written. A list that breaks off is written again."""
        num_yielded = 0
        for number in range(_MAX_TRIES):
            server = self._choose()
            try:
                written = ""
                chunks: openai.AsyncStream[Any] = await server.client.post(
                    "/completions",
                    body={**self._completion(prompt, max_tokens), "stream": True},
                    cast_to=object,
                    stream=True,
                    stream_cls=openai.AsyncStream[Any],
                )
                async with chunks:
                    async for chunk in chunks:
                        piece = chunk["choices"][0]["text"] if chunk["choices"] else ""
                        written += piece
                        texts = complete_texts(written) if '"' in piece else []
                        for text in texts[num_yielded:]:
                            num_yielded += 1
                            yield text
                return
            except _FAILURES as error:
                await self._failed(server, error, number)
            finally:
                server.num_unanswered -= 1

    def _completion(self, prompt: str, max_tokens: int) -> dict[str, object]:
        return {"model": self._model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}

    def _choose(self) -> LLMServer:
        """Take the server with the fewest unanswered requests; of several, the one chosen longest ago."""
        now_s = time.monotonic()
        server = min(self._llms, key=lambda one: (one.avoided_until_s > now_s, one.num_unanswered))
        self._llms.remove(server)
        self._llms.append(server)
        server.num_unanswered += 1
        return server

    async def _failed(self, server: LLMServer, error: openai.APIError, number: int) -> None:
        """Avoid a server for a while. Raises the error if it is the request's fault, or if all is lost."""
        is_refused = isinstance(error, openai.APIStatusError) and error.status_code < 500
        if is_refused or number == _MAX_TRIES - 1:
            raise error
        now_s = time.monotonic()
        server.avoided_until_s = now_s + _AVOIDED_S
        if all(one.avoided_until_s > now_s for one in self._llms):
            await asyncio.sleep(_PAUSE_S)


async def _post(client: openai.AsyncOpenAI, path: str, body: Mapping[str, object]) -> Any:
    """Send a request and return the JSON of the answer, without the client's classes, which cost time."""
    return await client.post(path, body=body, cast_to=object)


def _vector(encoded: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(encoded), "<f4")


def complete_texts(written: str) -> list[str]:
    """Return the texts of a JSON list that are complete in the part of it that has been written."""
    texts: list[str] = []
    start = written.find("[") + 1
    decoder = json.JSONDecoder()
    while start and (start := written.find('"', start)) >= 0:
        try:
            text, start = decoder.raw_decode(written, start)
        except ValueError:
            break
        texts.append(text)
    return texts


@asynccontextmanager
async def serving(work: Work) -> AsyncIterator[Servers]:
    """Context with the servers of a work. Each has connections of its own, so that few are looked through."""
    async with AsyncExitStack() as clients:
        llms = [
            LLMServer(await clients.enter_async_context(_client(f"{url}/v1", 0))) for url in work.servers.llm
        ]
        embedding = await clients.enter_async_context(_client(f"{work.servers.embedding}/v1", 10))
        reranking = await clients.enter_async_context(_client(work.servers.reranking, 10))
        yield Servers(work.model, llms, embedding, reranking)


def _client(url: str, max_retries: int) -> openai.AsyncOpenAI:
    """Return a client that keeps its connections.

    Args:
        max_retries: number of times that it tries again by itself.
    """
    import httpx2

    timeout = openai.Timeout(600.0, connect=5.0)
    limits = httpx2.Limits(
        max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS, keepalive_expiry=None
    )
    connections = openai.DefaultAsyncHttpx2Client(limits=limits, timeout=timeout)
    return openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=max_retries, http_client=connections, timeout=timeout
    )
