"""The engines of this machine, ready to register: what the command line and the examples run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.engines.batch.corpus_search import CorpusSearch, CorpusSearchConfig
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.batch.local_models import MINILM
from stretto.engines.batch.reranking import Reranking, RerankingConfig
from stretto.engines.batch.tools import Tools, ToolsConfig, TurnRecords
from stretto.engines.batch.transforms import Transforms, TransformsConfig
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.engines.batch.web_search import WebSearch, WebSearchConfig
from stretto.engines.executables import PROFILES
from stretto.engines.llms import RECOVER_S, is_url, llm_engine, shared_device
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.model.profile import Profile
from stretto.model.tools import Tool
from stretto.model.values import Document
from stretto.transforms.function_tools import as_tools

RAG_ENGINES = ("chunking", "embedding", "vectors", "reranking", "llm")
SEARCH_ENGINES = ("llm", "llm_small", "web")
"""Names of the engines that the ready-made apps use."""
KEPT_TEXTS = 10_000
"""Number of texts whose vectors engines for apps keep, some 30 MB: queries over the same documents embed them
once.
"""


def vectors_engine() -> Deployment:
    """Return the declaration of the engine "vectors", which keeps collections of vectors in memory.

    A collection without a name belongs to one query and is dropped when that ends.
    """
    return deploy(
        "vectors",
        MemoryVectors,
        MemoryVectorsConfig(),
        profile=PROFILES["vectors"],
        max_batch=1024,
        keeps_state=True,
    )


def local_engines(
    *,
    llm: Deployment | None = None,
    vectors: Deployment | None = None,
    embedding_model: str = MINILM,
    reranking_model: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    functions: Mapping[str, Callable[..., object]] | None = None,
    profiles: Mapping[str, Profile] | None = None,
    kept_texts: int = KEPT_TEXTS,
) -> list[Deployment]:
    """Return the declarations of the engines that the ready-made RAG apps need, with one instance each.

    Args:
        llm: the engine "llm"; None takes the default model.
        vectors: the engine "vectors"; None keeps vectors in memory.
        embedding_model: a sentence-transformers name or path, or the URL of a server. Chunks are measured in
            the model's tokens; with a server, in those of all-MiniLM-L6-v2.
        reranking_model: a cross-encoder's name or path, or the URL of a server; None scores by words.
        device: device of the models that embed and rerank here, see `embedding_engine`.
        dtype: type of their weights and activations.
        functions: functions that the op `call` may call, by name; if given, there is an engine "calls" too.
        profiles: profiles by engine, in place of the built-in ones.
        kept_texts: number of texts, those used last, whose vectors are kept on a CPU, so that the next query
            over the same documents does not embed them again.
    """
    counted_by = MINILM if is_url(embedding_model) else embedding_model
    engines = [
        deploy("chunking", Chunking, ChunkingConfig(counted_by), profile=PROFILES["chunking"]),
        embedding_engine(embedding_model, device=device, dtype=dtype, kept_texts=kept_texts),
        vectors or vectors_engine(),
        reranking_engine(reranking_model, device=device, dtype=dtype),
        llm or llm_engine(None),
    ]
    if functions is not None:
        engines.append(deploy("calls", Calls, CallsConfig(functions)))
    given = profiles or {}
    return [
        engine.changed(profile=given[engine.name]) if engine.name in given else engine for engine in engines
    ]


def embedding_engine(
    model: str, *, device: str | None = None, dtype: str | None = None, kept_texts: int = 0
) -> Deployment:
    """Return the engine "embedding": a model's name or path, or the URL of a server.

    Args:
        device: device of a model that runs here: "cpu" (the default), "cuda", "cuda:1" or "auto". A single
            core, such as "cpu:3", stands for the CPU.
        dtype: type of its weights and activations; None is bfloat16 on a CPU that computes with it, else
            float32.
        kept_texts: number of texts, those used last, whose vectors are kept on a CPU, so that the next query
            over the same documents does not embed them again.
    """
    if is_url(model):
        return _at_server("embedding", model)
    config = EmbeddingConfig(
        model, dtype=dtype or "auto", device=shared_device(device), kept_texts=kept_texts
    )
    profile = PROFILES["embedding" if config.dtype_on("cpu") == "bfloat16" else "embedding-float32"]
    return deploy("embedding", Embedding, config, profile=profile)


def reranking_engine(model: str | None, *, device: str | None = None, dtype: str | None = None) -> Deployment:
    """Return the engine "reranking": a cross-encoder's name or path, or the URL of a server.

    None scores by words.

    Args:
        device: device of a model that runs here, see `embedding_engine`.
        dtype: type of its weights and activations; None is float32.
    """
    if model is not None and is_url(model):
        return _at_server("reranking", model)
    config = RerankingConfig()
    if model is not None:
        config = RerankingConfig(model, device=shared_device(device), dtype=dtype or "float32")
    return deploy("reranking", Reranking, config, profile=PROFILES["reranking"])


def _at_server(engine: str, url: str) -> Deployment:
    with imports_of("client", repr(url)):
        from stretto.engines.batch.server.config import INSTANCES_PER_SERVER, BatchServerConfig
        from stretto.engines.batch.server.embedding import EmbeddingServer
        from stretto.engines.batch.server.reranking import RerankingServer
    server: Callable[[Any], Any] = EmbeddingServer if engine == "embedding" else RerankingServer
    config, profile = BatchServerConfig(url), PROFILES[f"{engine}-server"]
    return deploy(
        engine, server, config, instances=INSTANCES_PER_SERVER, profile=profile, recover_s=RECOVER_S
    )


def search_engines(llm: Deployment, url: str | None, documents: Sequence[Document]) -> list[Deployment]:
    """Return the declarations of the engines of the ready-made app "search": "llm", "llm_small" (the same
    model) and "web".

    That app drafts an answer, judges the draft, and searches only if the draft is not good enough.

    Args:
        url: URL of a web search service; None searches in `documents`.
        documents: documents to search in instead of the web.
    """
    return [llm, llm.changed(name="llm_small"), web_engine(url, documents)]


def web_engine(url: str | None, documents: Sequence[Document]) -> Deployment:
    """Return the declaration of the engine "web": a web search service at `url`, or if that is None a search
    in `documents`.
    """
    web: Callable[[Any], Any] = CorpusSearch
    config: object = CorpusSearchConfig(tuple(documents))
    if url is not None:
        web, config = WebSearch, WebSearchConfig(url)
    return deploy("web", web, config, profile=PROFILES["web"], max_batch=8)


def tools_engine(
    tools: Sequence[Tool | Callable[..., object]],
    *,
    instances: int = 16,
    max_result_chars: int = 4000,
    records: TurnRecords | None = None,
) -> Deployment:
    """Return the declaration of the engine "tools", which runs the tools of agents, up to `instances` calls
    side by side.

    Args:
        max_result_chars: largest number of characters of a result that the LLM reads; it is told what was
            cut.
        records: memory of the turns of named runs, such as a `stretto.ToolJournal`.

    Raises:
        ConfigError: `records` is the path of a file.
    """
    if isinstance(records, str | Path):
        raise ConfigError(f"records is a path; a journal in that file is ToolJournal({str(records)!r})")
    config = ToolsConfig(as_tools(tools), max_result_chars, records)
    profile = PROFILES["tools"]
    # Each call has a time of its own, and the effects of a turn run one after the other.
    return deploy("tools", Tools, config, instances=instances, profile=profile, max_batch=1, timeout_s=None)


def transforms_engine() -> Deployment:
    """Return the declaration of the engine "transforms", which transforms values between steps, in a
    thread.
    """
    return deploy("transforms", Transforms, TransformsConfig(), profile=PROFILES["transforms"], max_batch=16)
