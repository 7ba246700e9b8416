"""What an emulated embedding or reranking server answers at each path, as vLLM does.

Source: vLLM 0.32, `entrypoints/pooling/embed/protocol.py`, `entrypoints/pooling/score/protocol.py`.
Differs: vectors and scores are made up, the same for the same text; texts with common words are alike.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import shake_128
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stretto.emulate.app import HandlerTable
from stretto.emulate.batch_replica import EmulatedBatches
from stretto.emulate.gate import Gate
from stretto.emulate.generate import LOST
from stretto.emulate.tokens import FOUR_CHARACTERS
from stretto.http.request import HttpRequest
from stretto.wire import metrics, paths
from stretto.wire.errors import RequestRefused, malformed, prompt_too_long, unacceptable, unknown_model
from stretto.wire.fields import Fields, flag, integer, items, mapping, read_body, text, token_ids
from stretto.wire.models import ModelCard, models_json
from stretto.wire.rerank import ranking_json

DIMENSIONS = 1024
"""Length of vectors, that of bge-large-en-v1.5."""
_WORD = re.compile(r"\w+")


def direction_of(text: str, dimensions: int = DIMENSIONS) -> NDArray[np.int32]:
    """Return the direction of a text's vector as whole numbers: the sum of a random one for each word."""
    words = _WORD.findall(text.casefold()) or [text]
    total: NDArray[np.int32] = np.add.reduce([_of_word(word, dimensions) for word in words], dtype=np.int32)
    return total if total.any() else _of_word(text, dimensions).astype(np.int32)


def vector_of(text: str, dimensions: int = DIMENSIONS) -> NDArray[np.float32]:
    """Return the vector of a text, of length 1."""
    counts = direction_of(text, dimensions).astype(np.float32)
    return counts / np.float32(np.linalg.norm(counts))


def vector_json(text: str, dimensions: int = DIMENSIONS) -> str:
    """Return the vector of a text as JSON. Its few different numbers are written once each."""
    counts = direction_of(text, dimensions)
    length = math.sqrt(float((counts.astype(np.int64) ** 2).sum()))
    least = int(counts.min())
    written = [f"{count / length:.8f}" for count in range(least, int(counts.max()) + 1)]
    return f"[{','.join([written[place] for place in (counts - least).tolist()])}]"


def relevance(query: str, document: str) -> float:
    """Return a score in (0, 1) of how well a document answers a query: more common words, a higher one."""
    cosine = float(_of_query(query) @ vector_of(document, 256))
    return 1 / (1 + math.exp(-8 * (cosine - 0.5)))


@lru_cache(maxsize=64)
def _of_query(query: str) -> NDArray[np.float32]:
    return vector_of(query, 256)


@lru_cache(maxsize=4096)
def _of_word(word: str, dimensions: int) -> NDArray[np.int8]:
    num_bytes = -(-dimensions // 8)
    bits = np.unpackbits(
        np.frombuffer(shake_128(word.encode("utf-8", "replace")).digest(num_bytes), np.uint8)
    )
    return (bits[:dimensions].astype(np.int8) * 2 - 1).astype(np.int8)


T = TypeVar("T")

MAX_TOKENS = 512
"""Longest text of bge-large-en-v1.5 and bge-reranker-large, in tokens."""


class ServedBatches:
    """The handlers of an emulated embedding or reranking server by path.

    Args:
        kind: "embedding" or "reranking".
        model: name of the model in requests and answers.
        metrics_text: function that returns the text of `/metrics`.
    """

    def __init__(
        self, kind: str, model: str, replica: EmulatedBatches, gate: Gate, metrics_text: Callable[[], str]
    ) -> None:
        self._model = model
        self._replica = replica
        self._gate = gate
        self._metrics_text = metrics_text
        self._num_requests = 0
        self.table: HandlerTable = {
            ("GET", paths.MODELS): self._models,
            ("GET", paths.HEALTH): self._health,
            ("GET", paths.METRICS): self._metrics,
        }
        if kind == "embedding":
            self.table["POST", "v1/embeddings"] = self._embed
        else:
            self.table |= {("POST", f"{version}rerank"): self._rerank for version in ("", "v1/", "v2/")}

    async def _embed(self, request: HttpRequest) -> None:
        sent = Fields(read_body(await request.body()))
        self._check_model(sent)
        texts = sent.take("input", _texts, ())
        if not texts:
            raise unacceptable("input", "input must be provided and non-empty.")
        encoding = sent.take("encoding_format", text, "float")
        if encoding not in ("float", "base64"):
            raise unacceptable(
                "encoding_format", f"encoding_format must be float or base64, got {encoding!r}."
            )
        dimensions = sent.take("dimensions", integer(1, DIMENSIONS), DIMENSIONS)
        num_tokens = sum(map(self._num_tokens, texts))
        write: Callable[[str, int], str] = _base64_json if encoding == "base64" else vector_json
        vectors = (write(one, dimensions) for one in texts)
        written = await request.unless_left(self._run(len(texts), vectors))
        await request.answer(self._embeddings(written, num_tokens))

    def _embeddings(self, written: Sequence[str], num_tokens: int) -> bytes:
        """Return the answer with vectors that are written as JSON."""
        rows = ",".join(
            f'{{"index":{index},"object":"embedding","embedding":{vector}}}'
            for index, vector in enumerate(written)
        )
        head = {
            "id": f"embd-{self._next()}",
            "object": "list",
            "created": int(time.time()),
            "model": self._model,
        }
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}
        return f'{json.dumps(head)[:-1]},"data":[{rows}],"usage":{json.dumps(usage)}}}'.encode()

    async def _rerank(self, request: HttpRequest) -> None:
        sent = Fields(read_body(await request.body()))
        self._check_model(sent)
        query = sent.take("query", text, None)
        documents = sent.take("documents", items(_document), ())
        if query is None or not documents:
            raise unacceptable("documents", "query and documents must be provided and non-empty.")
        top = sent.take("top_n", integer(0), 0) or len(documents)
        has_documents = sent.take("return_documents", flag, True)
        num_tokens = sum(self._num_tokens(query) + self._num_tokens(one) for one in documents)
        relevances = (relevance(query, one) for one in documents)
        scores = await request.unless_left(self._run(len(documents), relevances))
        kept = documents if has_documents else None
        head = {"id": f"rerank-{self._next()}", "model": self._model}
        await request.answer_json(ranking_json(scores, kept, top, num_tokens, **head))

    async def _run(self, num_units: int, values: Iterable[T]) -> list[T]:
        """Wait until the instance has answered. Compute the values of the answer meanwhile, and let other
        requests have a turn after each.
        """
        await self._gate.work()
        answered = self._replica.submit(num_units)
        try:
            computed: list[T] = []
            for value in values:
                computed.append(value)
                await asyncio.sleep(0)
            is_answered = await answered
        finally:
            answered.cancel()
        await self._gate.leave()
        if not is_answered:
            raise RequestRefused(LOST)
        return computed

    def _check_model(self, sent: Fields) -> None:
        model = sent.take("model", text, "")
        if model not in ("", self._model):
            raise unknown_model(model, [self._model])

    def _num_tokens(self, one: str) -> int:
        num_tokens = len(FOUR_CHARACTERS.encode(one))
        if num_tokens > MAX_TOKENS:
            raise prompt_too_long(num_tokens, MAX_TOKENS)
        return num_tokens

    def _next(self) -> int:
        self._num_requests += 1
        return self._num_requests

    async def _models(self, request: HttpRequest) -> None:
        await request.answer_json(models_json([ModelCard(self._model, self._model, MAX_TOKENS)]))

    async def _health(self, request: HttpRequest) -> None:
        await request.answer(b"")

    async def _metrics(self, request: HttpRequest) -> None:
        await request.answer(self._metrics_text().encode(), content_type=metrics.CONTENT_TYPE.encode())


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Read one text, a list of texts, or token ids of one or of several."""
    if isinstance(value, str):
        return (text(name, value),)
    if not isinstance(value, list):
        raise malformed(name, "neither a text, nor token ids, nor a list of such")
    if value and type(value[0]) is int:
        return (FOUR_CHARACTERS.decode(token_ids(name, value)),)
    return items(_one_text)(name, value)


def _one_text(name: str, value: Any) -> str:
    return text(name, value) if isinstance(value, str) else FOUR_CHARACTERS.decode(token_ids(name, value))


def _document(name: str, value: Any) -> str:
    return (
        text(name, value)
        if isinstance(value, str)
        else text(f"{name}.text", mapping(name, value).get("text"))
    )


def _base64_json(one: str, dimensions: int) -> str:
    return f'"{base64.b64encode(vector_of(one, dimensions).astype(np.float32).tobytes()).decode()}"'
