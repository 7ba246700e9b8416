"""The client of a server that embeds or reranks: learns what the server is, and sends requests at once.

A server that answers `/info` as Text Embeddings Inference does is asked in its own API, because that cuts
long texts and names the limit of a request. Any other server is asked in OpenAI's API and vLLM's extensions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

from stretto.engines.batch.applications import Op, answer_batch
from stretto.engines.batch.server.config import BatchServerConfig
from stretto.engines.batch.server.tei_wire import INFO, read_info
from stretto.engines.contract import BatchEngine
from stretto.engines.openai_server.http import Http, read_server_json
from stretto.model.errors import BadReply, BadServer, EngineTimeout, EngineUnavailable
from stretto.model.tasks import Task
from stretto.wire import paths
from stretto.wire.models import choose_model, read_models

T = TypeVar("T")


def pieces(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Cut items into consecutive pieces of at most `most`, whose sizes differ by 1 at most."""
    num_pieces = -(-len(items) // most)
    ends = [len(items) * number // num_pieces for number in range(num_pieces + 1)] if items else [0]
    return [items[lo:hi] for lo, hi in pairwise(ends)]


Request: TypeAlias = tuple[str, dict[str, object]]
"""Path and body of a POST."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The facts that a server has told of itself.

    Attributes:
        is_tei: whether it speaks the API of Text Embeddings Inference.
        max_texts: largest number of texts of one request.
        truncates: whether it understands vLLM's request to cut texts that are too long.
    """

    name: str
    is_tei: bool
    max_texts: int
    truncates: bool


class BatchServer(BatchEngine):
    """An engine whose batches a server answers, and the client of that. It keeps its connections between
    batches.

    Attributes:
        others_serve: whether other servers serve too, to which requests go that this one refuses, so that it
            is not asked again.
    """

    RUNS_IN = ("thread", "process")

    def __init__(self, config: BatchServerConfig) -> None:
        """Create the client; nothing is sent yet. Raises ConfigError if the URL or the key is unusable."""
        self.others_serve = False
        self._config = config
        self._http = Http(config)
        self._runner = asyncio.Runner()
        self._served: ServedModel | None = None
        self._is_closed = False

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Answer the tasks of a batch, in as many requests as the limits need, which are sent at once.

        Raises:
            EngineUnavailable: the server cannot be reached, breaks off, or is overloaded.
            EngineTimeout: the server is silent.
            BadReply: an input is unusable, or the server refuses it.
            BadServer: the server answers nothing usable.
        """
        self.others_serve = any(task.others_serve for task in tasks)
        return answer_batch(tasks, self.ops())

    def ops(self) -> Mapping[str, Op]:
        """Return functions that answer applications of ops, by op."""
        raise NotImplementedError

    def served(self) -> ServedModel:
        """Return what the server is. It is asked once, and again after it was out of reach.

        Raises:
            EngineUnavailable: the server cannot be reached, breaks off, or is overloaded.
            EngineTimeout: the server is silent.
            BadServer: the server lists no model, and the configuration names none.
            ConfigError: the server lists several models, and the configuration names none.
        """
        if self._served is None:
            self._served = self._runner.run(self._discover())
        return self._served

    def post_all(self, requests: Sequence[Request]) -> list[Any]:
        """Send requests, several at once; return the JSON of the answers in order.

        The first request that fails ends the others.

        Raises:
            EngineUnavailable: the server cannot be reached, breaks off, or is overloaded.
            EngineTimeout: the server is silent.
            BadReply: the server refuses a request.
            BadServer: the server refuses whoever asks, or does not answer JSON.
        """
        try:
            return self._runner.run(self._post_all(requests))
        except (EngineUnavailable, EngineTimeout, BadServer):
            self._served = None  # it may come back with another model
            raise

    def probe(self) -> None:
        """Check whether the server answers. Raises EngineFailure if it does not."""
        self._served = None
        self.served()

    def close(self) -> None:
        """Close the connections."""
        if not self._is_closed:
            self._is_closed = True
            self._runner.run(self._http.aclose())
            self._runner.close()

    async def _discover(self) -> ServedModel:
        config = self._config
        try:
            info = read_info(read_server_json(await self._http.fetch(INFO, others_serve=self.others_serve)))
        except BadReply:
            info = None
        if info is not None:
            max_texts = min(config.max_texts, info.max_texts)
            return ServedModel(config.model or info.model, True, max_texts, truncates=True)
        try:
            cards = read_models(
                read_server_json(await self._http.fetch(paths.MODELS, others_serve=self.others_serve))
            )
        except BadReply:
            if config.model is None:
                raise
            cards = ()
        card = choose_model(cards, config.model, does="compare")
        truncates = card.max_model_tokens is not None
        return ServedModel(card.id, False, config.max_texts, truncates)

    async def _post_all(self, requests: Sequence[Request]) -> list[Any]:
        places = asyncio.Semaphore(self._config.max_connections)

        async def post(path: str, body: dict[str, object]) -> Any:
            async with places:
                return read_server_json(await self._http.fetch(path, body, others_serve=self.others_serve))

        asked = [asyncio.ensure_future(post(path, body)) for path, body in requests]
        try:
            return list(await asyncio.gather(*asked))
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
