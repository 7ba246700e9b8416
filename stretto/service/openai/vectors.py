"""Embeddings and rerank: texts to the engines that embed and rerank, as queries of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from stretto.costs.mean_output import num_tokens
from stretto.engines.batch.chunking import max_tokens, tokenizer_of
from stretto.engines.batch.embedding import EmbeddingConfig
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Arg, Graph, Primitive, Ref
from stretto.model.replica import Replica
from stretto.model.values import Chunk, Hit
from stretto.router.programs import asked_program
from stretto.runtime.runtime import Runtime
from stretto.service.bodies import off_loop, untyped_json
from stretto.service.openai.errors import invalid, refused_as_too_long, unsupported
from stretto.service.openai.programs import ServedPrograms, name_of
from stretto.service.openai.served_models import EMBEDDING, RERANKING, ServedModels
from stretto.service.request import ServiceRequest
from stretto.wire.embeddings import embeddings_json
from stretto.wire.fields import Fields, flag, integer, items, mapping, text
from stretto.wire.rerank import ranking_json

MAX_TEXTS = 2048
"""Largest number of texts or documents of one request."""
_BYTES_PER_VECTOR = 4000
"""Rough size of a vector as JSON."""
_LABELS = ("user",)
_FORMATS = ("float", "base64")


class VectorRoutes:
    """The handlers of embeddings and rerank.

    Args:
        programs: recognises which programs requests belong to.
        spares: replicas of engines that have none yet; the first request to an engine starts its own.
    """

    def __init__(
        self,
        runtime: Runtime,
        models: ServedModels,
        programs: ServedPrograms,
        spares: Mapping[str, Replica],
    ) -> None:
        self._runtime = runtime
        self._models = models
        self._programs = programs
        self._spares = dict(spares)
        self._embed = runtime.plan_cache.plan_graph(_EMBED, ()) if EMBEDDING in runtime.deployments else None
        self._rerank = (
            runtime.plan_cache.plan_graph(_RERANK, ()) if RERANKING in runtime.deployments else None
        )
        self._counted_by = self._model_here()

    async def embed(self, request: ServiceRequest) -> None:
        """Answer with the vectors of texts."""
        model, texts, encoding, dimensions = await request.read(_read_embeddings)
        engine = self._models.batch_engine(EMBEDDING, model)
        num_read = await asyncio.to_thread(self._num_tokens, texts)
        outputs = await self._run(request, engine.name, self._embed, {"texts": texts})
        vectors = outputs["vectors"]
        if dimensions not in (None, len(vectors[0])):
            raise unsupported(
                "dimensions", f"dimensions is {dimensions}; vectors of {engine.model} have {len(vectors[0])}"
            )
        name = model or engine.name

        def write() -> bytes:
            found = [np.asarray(vector, np.float32) for vector in vectors]
            answer = embeddings_json(name, found, num_read, in_base64=encoding == "base64")
            return msgspec.json.encode(answer)

        await request.answer(await off_loop(len(vectors) * _BYTES_PER_VECTOR, write))

    async def rerank(self, request: ServiceRequest) -> None:
        """Answer with the scores of documents for a query."""
        model, query, documents, top, has_documents = await request.read(_read_rerank)
        engine = self._models.batch_engine(RERANKING, model)
        hits = [Hit(Chunk("", index, document), 0.0) for index, document in enumerate(documents)]
        outputs = await self._run(request, engine.name, self._rerank, {"question": query, "hits": hits})
        scores = [0.0] * len(documents)
        for hit in outputs["ranked"]:
            scores[hit.chunk.index] = float(hit.score)
        num_read = sum(num_tokens(query) + num_tokens(document) for document in documents)
        kept = documents if has_documents else None
        head = {"id": f"rerank-{request.id}", "model": model or engine.name}
        await request.answer_json(ranking_json(scores, kept, top or len(documents), num_read, **head))

    async def _run(
        self, request: ServiceRequest, engine: str, graph: ExecutionGraph | None, inputs: Mapping[str, object]
    ) -> Mapping[str, Any]:
        assert graph is not None
        if (replica := self._spares.pop(engine, None)) is not None:
            self._runtime.add_instance(engine, replica)
        tenant = request.tenant.name
        asked = asked_program(request.path, request.headers, {}, tenant)
        with self._programs.of(request, asked) as program:
            running = self._runtime.run(
                graph,
                inputs,
                passes="none",
                tenant=tenant,
                program=name_of(program),
                objective=request.admitted.objective or "throughput",
            )
            return await request.unless_left(running)

    def _model_here(self) -> str | None:
        """Return the name of the model that embeds in this process or its workers; None for a server's."""
        deployment = self._runtime.deployments.get(EMBEDDING)
        replicas = () if deployment is None else deployment.replicas
        replica = next(iter(replicas), self._spares.get(EMBEDDING))
        config = None if replica is None else replica.instance_config()
        return config.model if isinstance(config, EmbeddingConfig) else None

    def _num_tokens(self, texts: Sequence[str]) -> int:
        """Return the number of tokens of texts: counted where the model is here, else estimated.

        Raises:
            Refused: a text has more tokens than the model reads.
        """
        if self._counted_by is None:
            return sum(map(num_tokens, texts))
        tokenizer, limit = _tokenizer_of(self._counted_by), max_tokens(self._counted_by)
        counts = [len(one.ids) for one in tokenizer.encode_batch(list(texts))]
        if (longest := max(counts)) > limit:
            place = counts.index(longest)
            raise refused_as_too_long(
                f"input {place} has {longest} tokens; the model reads at most {limit}", f"input.{place}"
            )
        return sum(counts)


_tokenizer_of = lru_cache(maxsize=1)(tokenizer_of)

_EMBED = Graph(
    "embeddings",
    (("texts", "list[text]"),),
    (Primitive("vectors", "embed", (Arg("texts", Ref("texts"), each=True),), engine=EMBEDDING),),
    (),
    (("vectors", Ref("vectors")),),
)
_RERANK = Graph(
    "rerank",
    (("question", "text"), ("hits", "list[hit]")),
    (
        Primitive(
            "ranked", "rerank", (Arg("question", Ref("question")), Arg("hits", Ref("hits"))), engine=RERANKING
        ),
    ),
    (),
    (("ranked", Ref("ranked")),),
)


def _read_embeddings(content: bytes | bytearray) -> tuple[str, tuple[str, ...], str, int | None]:
    sent = Fields(mapping("", untyped_json(content, "the body")))
    model = sent.take("model", text, "")
    texts = sent.take("input", _texts, ())
    encoding = sent.take("encoding_format", text, "float")
    if encoding not in _FORMATS:
        raise invalid("encoding_format", f"encoding_format must be one of {', '.join(_FORMATS)}")
    dimensions = sent.take("dimensions", integer(1), None)
    _check_nothing(sent)
    if not texts or not all(texts):
        raise invalid("input", "input must be a text, or a list of texts, none of which is empty")
    return model, texts, encoding, dimensions


def _read_rerank(content: bytes | bytearray) -> tuple[str, str, tuple[str, ...], int, bool]:
    sent = Fields(mapping("", untyped_json(content, "the body")))
    model = sent.take("model", text, "")
    query = sent.take("query", text, "")
    documents = sent.take("documents", items(_document, max_items=MAX_TEXTS), ())
    top = sent.take("top_n", integer(1), 0)
    has_documents = sent.take("return_documents", flag, False)
    _check_nothing(sent)
    if not query or not documents:
        raise invalid("documents" if query else "query", "query and documents must be there")
    return model, query, documents, top, has_documents


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (text(name, value),)
    if isinstance(value, list) and value and not isinstance(value[0], str):
        raise unsupported("input", "input must be texts: token ids are not read here")
    return items(text, max_items=MAX_TEXTS)(name, value)


def _document(name: str, value: Any) -> str:
    return (
        text(name, value)
        if isinstance(value, str)
        else text(f"{name}.text", mapping(name, value).get("text"))
    )


def _check_nothing(sent: Fields) -> None:
    rest = [name for name, value in sent.left().items() if value is not None and name not in _LABELS]
    if rest:
        raise unsupported(rest[0])
