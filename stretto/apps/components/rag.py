"""Ready-made components of document question answering: indexing, expansion, search, rerank, synthesis.

Defaults are those of the Teola paper (§7): chunks of 256 tokens with 30 overlap, 3 expanded queries, 16
hits each, the best 3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, at_least, at_most, check_chunks
from stretto.graph.graph import Arg, Ref
from stretto.graph.ops import Port
from stretto.graph.types import item_type
from stretto.model.errors import ConfigError

_BATCHABLE = ("batchable",)
_MAX_QUERY_CHARS = 120


class Indexing(Component):
    """A component of an app that cuts documents into chunks, embeds these, and stores them for searching.

    They are stored in a named `collection`, where later runs find them too; if that port is not connected,
    they are stored for one run of the app alone, together with those of its other components `Indexing` that
    have the same engine `vectors`.
    """

    ports = (Port("files", "list[document]"), Port("collection", "text", optional=True))
    outs: ClassVar[Mapping[str, str]] = {"indexed": "effect"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `Indexing`, which cuts documents into chunks, embeds and stores them.

        Attributes:
            tokens: most tokens of a chunk, counted by the embedder's tokenizer.
            overlap: most tokens that a chunk repeats from the one before.
            recipe: text that says how chunks are made (sizes and embedder). It is stored with the documents,
                so that later runs can tell which of them have to be indexed again.
            chunking, embedding, vectors: names of the engines.
        """

        tokens: int = 256
        overlap: int = 30
        recipe: str = ""
        chunking: str = "chunking"
        embedding: str = "embedding"
        vectors: str = "vectors"

        def __post_init__(self) -> None:
            check_chunks(self.tokens, self.overlap)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the steps `chunk`, `embed` and `ingest` of the indexing to the app's graph, each applied item
        by item.
        """
        chunks = build.add(
            "chunks",
            "chunk",
            (build.take("files", each=True),),
            engine=config.chunking,
            config={"tokens": config.tokens, "overlap": config.overlap},
            hints=_BATCHABLE,
        )
        vectors = build.add(
            "vectors", "embed", (Arg("texts", chunks, each=True),), engine=config.embedding, hints=_BATCHABLE
        )
        args = [Arg("chunks", chunks, each=True), Arg("vectors", vectors, each=True)]
        if build.is_fed("collection"):
            args.append(build.take("collection"))
        recipe = {"recipe": config.recipe} if config.recipe else {}
        indexed = build.add(
            "indexed", "ingest", tuple(args), engine=config.vectors, config=recipe, hints=_BATCHABLE
        )
        return {"indexed": indexed}


class QueryExpansion(Component):
    """A component of an app that lets an LLM reword a question into several texts to search for."""

    ports = (Port("question", "text"),)
    outs: ClassVar[Mapping[str, str]] = {"queries": "list[text]"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `QueryExpansion`, which lets an LLM reword a question.

        Attributes:
            prompt: text with {question} and {num_queries} that asks for a JSON list of strings.
            num_queries: queries that are used; a shorter list is used as it is.
            constrained: whether the output must follow a JSON schema. None holds the models that run in this
                process or in its workers to it, where llguidance is installed. True has servers asked too,
                and an engine that cannot refuses it.
            fallback: whether the question is searched for where the output is no list, with a warning in the
                log; else the query fails then.
        """

        num_queries: int = 3
        max_tokens: int = 200
        constrained: bool | None = None
        fallback: bool = True
        prompt: str = "expand"
        engine: str = "llm"

        def __post_init__(self) -> None:
            at_least(1, num_queries=self.num_queries, max_tokens=self.max_tokens)
            at_most(64, num_queries=self.num_queries)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the LLM call that rewords a question to the app's graph: a prefill, and a decode of a list that
        is used item by item.
        """
        extra: dict[str, object] = {"fallback": "question"} if config.fallback else {}
        if config.constrained is not False:
            extra["json_schema"] = _strings(config.num_queries)
        if config.constrained is None:
            extra["schema_if_able"] = True
        queries = build.complete(
            "queries",
            config.prompt,
            {"question": build.value("question")},
            engine=config.engine,
            decode={
                "max_tokens": config.max_tokens,
                "items": "json_list",
                "max_items": config.num_queries,
                **extra,
            },
            constants={"num_queries": config.num_queries},
            hints=("splittable",),
        )
        return {"queries": queries}


def _strings(count: int) -> str:
    """The JSON schema of a list of `count` short texts."""
    text = {"type": "string", "minLength": 1, "maxLength": _MAX_QUERY_CHARS}
    return json.dumps({"type": "array", "items": text, "minItems": count, "maxItems": count})


class Searching(Component):
    """A component of an app that embeds one search text or several, and searches stored documents (a
    collection) for each of them.
    """

    ports = (
        Port("queries", "text|list[text]"),
        Port("indexed", "effect", optional=True),
        Port("collection", "text", optional=True),
    )
    outs: ClassVar[Mapping[str, str]] = {"hits": "list[hit]"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the search: `top_k` hits for each search text, and the names of the engines."""

        top_k: int = 16
        embedding: str = "embedding"
        vectors: str = "vectors"

        def __post_init__(self) -> None:
            at_least(1, top_k=self.top_k)
            at_most(10_000, top_k=self.top_k)

    def out_types(self, in_types: Mapping[str, str], config: Config) -> Mapping[str, str]:
        """Return the type of the search's output: a list of hits, or one such list for each search text."""
        is_list = item_type(in_types["queries"]) is not None
        return {"hits": "list[list[hit]]" if is_list else "list[hit]"}

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the steps `embed` and `search` to the app's graph; `search` waits for the end of the indexing.

        Raises:
            ConfigError: nothing says what to search in.
        """
        if not (build.is_fed("indexed") or build.is_fed("collection")):
            raise ConfigError(
                "it has nothing to search in: connect `indexed` to an Indexing, or `collection` to a name"
            )
        texts = build.take_each_if_list("queries", "texts")
        vectors = build.add("query_vectors", "embed", (texts,), engine=config.embedding, hints=_BATCHABLE)
        args = [Arg("queries", vectors, each=texts.each)]
        if build.is_fed("indexed"):
            args.append(build.take("indexed", "index"))
        if build.is_fed("collection"):
            args.append(build.take("collection"))
        hits = build.add(
            "hits",
            "search",
            tuple(args),
            engine=config.vectors,
            config={"k": config.top_k},
            hints=_BATCHABLE,
        )
        return {"hits": hits}


class Reranking(Component):
    """A component of an app that scores how well search hits answer the question and keeps the best, each
    chunk once.
    """

    ports = (Port("question", "text"), Port("hits", "list[hit]|list[list[hit]]"))
    outs: ClassVar[Mapping[str, str]] = {"top": "list[hit]"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the reranking: the number `best` of hits to keep, of all lists together; the engine."""

        best: int = 3
        engine: str = "reranking"

        def __post_init__(self) -> None:
            at_least(1, best=self.best)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add to the app's graph a `rerank` step for each list of search hits, and one that keeps the best of
        all.
        """
        is_nested = item_type(item_type(build.types["hits"]) or "") is not None
        scored = build.add(
            "scored",
            "rerank",
            (build.take("question"), build.take("hits", each=is_nested)),
            engine=config.engine,
            hints=_BATCHABLE,
        )
        top = build.add(
            "top", "aggregate", (Arg(str(scored), scored),), config={"best": config.best, "distinct": True}
        )
        return {"top": top}
