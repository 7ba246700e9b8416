"""The engines of this machine, ready to register: what the command line and the examples run on.

Profiles are of two cores of a server CPU without a GPU; `stretto profile` measures others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.core import Document
from stretto.costs.profile import Profile
from stretto.deployment import Engine
from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.engines.batch.corpus_search import CorpusSearch, CorpusSearchConfig
from stretto.engines.batch.embedding import MINILM, MISSING_PACKAGES, Embedding, EmbeddingConfig, model_name
from stretto.engines.batch.reranking import Reranking, RerankingConfig
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.engines.batch.web_search import WebSearch, WebSearchConfig
from stretto.engines.contract import SteppedLLM
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.errors import ConfigError
from stretto.models import MINI

PROFILES: Mapping[str, Profile] = {
    "chunking": Profile(base_s=0.0002, per_unit_s=0.02, max_efficient_batch=1),
    "embedding": Profile(base_s=0.004, per_unit_s=0.03, max_efficient_batch=16),
    "vectors": Profile(base_s=0.0002, per_unit_s=0.00001, max_efficient_batch=256),
    "reranking": Profile(base_s=0.0002, per_unit_s=0.0002, max_efficient_batch=64),
    "web": Profile(base_s=0.3, per_unit_s=0.0, max_efficient_batch=8),
    "llm": Profile(base_s=0.0, per_unit_s=0.00007, per_output_s=0.004),
}

COMPLETION_STOP = ("\nQuestion:", "\n\n\n")

STAND_IN = "stand-in"
SMALL_MODEL = "mini"
DEFAULT_LLM = SMALL_MODEL


def llm_engine(
    where: str | None, *, instances: int = 1, api: str | None = None, tokenizer: str | None = None
) -> Engine:
    """The LLM engine for `--llm`: a server's URL, a checkpoint's directory, "stand-in" or "mini".

    Args:
        where: "mini", and None, is the small model that ships with Stretto.
        api: of a server: "completions" (the default) or "chat".
        tokenizer: of a server: a directory, "none" or "auto" (the default); see `OpenAIServerConfig`.

    Raises:
        ConfigError: there is no such directory, or packages are missing.
    """
    if where is not None and where.startswith(("http://", "https://")):
        return _server(where, instances, api or "completions", tokenizer or "auto")
    if api or tokenizer:
        raise ConfigError("--api and --tokenizer are for an --llm that is a URL")
    where = DEFAULT_LLM if where is None else where
    if where == STAND_IN:
        return _in_process(StandIn, StandInConfig(), instances)
    if where == SMALL_MODEL:
        return _checkpoint(MINI, instances)
    if not Path(where).is_dir():
        raise ConfigError(f"--llm {where!r} is neither a URL nor a directory with a checkpoint")
    return _checkpoint(Path(where), instances)


def is_small_model(engine: Engine) -> bool:
    """Whether it is the LLM that ships with Stretto."""
    return getattr(engine.config, "path", None) == MINI


def _checkpoint(folder: Path, instances: int) -> Engine:
    """The in-process engine for the kinds of model that it knows, the reference for any other."""
    try:  # torch, only if it is wanted
        from stretto.engines.reference.engine import ReferenceConfig, ReferenceLLM
        from stretto.engines.transformer.config import is_supported
        from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
    except ImportError as cause:
        raise ConfigError(f"--llm {str(folder)!r} {MISSING_PACKAGES}") from cause
    if is_supported(folder):
        return _in_process(TransformerLLM, TransformerConfig(folder), instances)
    return _in_process(ReferenceLLM, ReferenceConfig(folder), instances)


def _server(url: str, instances: int, api: Any, tokenizer: str) -> Engine:
    """Completions stop where a base model would begin a further question, or nothing."""
    try:
        from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
    except ImportError as cause:
        raise ConfigError(f"--llm {url!r} {MISSING_PACKAGES}") from cause
    return Engine(
        "llm",
        OpenAIServer,
        OpenAIServerConfig(url, api=api, tokenizer=tokenizer, stop=() if api == "chat" else COMPLETION_STOP),
        kind="llm_server",
        profile=PROFILES["llm"],
        instances=instances,
    )


def _in_process(executable: Callable[[Any], SteppedLLM], config: object, instances: int) -> Engine:
    return Engine(
        "llm",
        executable,
        config,
        kind="llm",
        profile=PROFILES["llm"],
        keeps_state=True,
        instances=instances,
    )


def vectors_engine() -> Engine:
    """Vectors in memory: collections of a query go with it."""
    return Engine(
        "vectors",
        MemoryVectors,
        MemoryVectorsConfig(),
        profile=PROFILES["vectors"],
        max_batch=1024,
        keeps_state=True,
    )


def local_engines(
    *,
    llm: Engine | None = None,
    vectors: Engine | None = None,
    embedding_model: str = MINILM,
    reranking_model: str | None = None,
    functions: Mapping[str, Callable[..., object]] | None = None,
    profiles: Mapping[str, Profile] | None = None,
) -> list[Engine]:
    """All engines that the ready-made apps name, one instance of each.

    Args:
        llm: default: the small model that ships with Stretto.
        vectors: default: in memory.
        embedding_model: a sentence-transformers name or path; chunks are measured in its tokens.
        reranking_model: a cross-encoder's name or path; None scores by words.
        functions: what `call` may call, by name: with them there is an engine "calls" too.
        profiles: profiles by engine, in place of the built-in ones.
    """
    engines = [
        Engine("chunking", Chunking, ChunkingConfig(embedding_model), profile=PROFILES["chunking"]),
        Engine("embedding", Embedding, EmbeddingConfig(embedding_model), profile=PROFILES["embedding"]),
        vectors or vectors_engine(),
        Engine("reranking", Reranking, RerankingConfig(reranking_model), profile=PROFILES["reranking"]),
        llm or llm_engine(None),
    ]
    if functions is not None:
        engines.append(Engine("calls", Calls, CallsConfig(functions)))
    given = profiles or {}
    return [replace(engine, profile=given.get(engine.name, engine.profile)) for engine in engines]


def search_engines(llm: Engine, url: str | None, documents: Sequence[Document]) -> list[Engine]:
    """The engines of search-empowered generation: `llm`, `llm_small`, here the same model, and `web`.

    Args:
        url: of a search service; None searches in `documents`.
    """
    web: Callable[[Any], Any] = CorpusSearch
    config: object = CorpusSearchConfig(tuple(documents))
    if url is not None:
        web, config = WebSearch, WebSearchConfig(url)
    small = replace(llm, name="llm_small")
    return [llm, small, Engine("web", web, config, profile=PROFILES["web"], max_batch=8)]


def engine_and_model(engine: Engine) -> str:
    """What a measured profile is of: the engine's name and its model, or what it is where it has none."""
    config = engine.config
    model = getattr(config, "model", None) or getattr(config, "path", None)
    if model is None:
        return f"{engine.name}:{type(config).__name__.removesuffix('Config')}"
    return f"{engine.name}:{model_name(str(model))}"
