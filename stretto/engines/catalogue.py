"""The engines of this machine, ready to register: what the command line and the examples run on.

Profiles are of two cores of a server CPU without a GPU; `stretto profile` measures others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.core import Document
from stretto.costs.profile import Profile
from stretto.deployment import Deployment, deploy
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
) -> Deployment:
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


def is_small_model(deployment: Deployment) -> bool:
    """Whether it is the LLM that ships with Stretto."""
    return any(getattr(replica.config, "path", None) == MINI for replica in deployment.replicas)


def _checkpoint(folder: Path, instances: int) -> Deployment:
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


def _server(url: str, instances: int, api: Any, tokenizer: str) -> Deployment:
    """Completions stop where a base model would begin a further question, or nothing."""
    try:
        from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
    except ImportError as cause:
        raise ConfigError(f"--llm {url!r} {MISSING_PACKAGES}") from cause
    return deploy(
        "llm",
        OpenAIServer,
        OpenAIServerConfig(url, api=api, tokenizer=tokenizer, stop=() if api == "chat" else COMPLETION_STOP),
        contract="llm",
        runs_in="loop",
        profile=PROFILES["llm"],
        instances=instances,
    )


def _in_process(executable: Callable[[Any], SteppedLLM], config: object, instances: int) -> Deployment:
    return deploy(
        "llm",
        executable,
        config,
        contract="llm",
        profile=PROFILES["llm"],
        keeps_state=True,
        instances=instances,
    )


def vectors_engine() -> Deployment:
    """Vectors in memory: collections of a query go with it."""
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
    functions: Mapping[str, Callable[..., object]] | None = None,
    profiles: Mapping[str, Profile] | None = None,
) -> list[Deployment]:
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
        deploy("chunking", Chunking, ChunkingConfig(embedding_model), profile=PROFILES["chunking"]),
        deploy("embedding", Embedding, EmbeddingConfig(embedding_model), profile=PROFILES["embedding"]),
        vectors or vectors_engine(),
        deploy("reranking", Reranking, RerankingConfig(reranking_model), profile=PROFILES["reranking"]),
        llm or llm_engine(None),
    ]
    if functions is not None:
        engines.append(deploy("calls", Calls, CallsConfig(functions)))
    given = profiles or {}
    return [
        engine.changed(profile=given[engine.name]) if engine.name in given else engine for engine in engines
    ]


def search_engines(llm: Deployment, url: str | None, documents: Sequence[Document]) -> list[Deployment]:
    """The engines of search-empowered generation: `llm`, `llm_small`, here the same model, and `web`.

    Args:
        url: of a search service; None searches in `documents`.
    """
    web: Callable[[Any], Any] = CorpusSearch
    config: object = CorpusSearchConfig(tuple(documents))
    if url is not None:
        web, config = WebSearch, WebSearchConfig(url)
    small = llm.changed(name="llm_small")
    return [llm, small, deploy("web", web, config, profile=PROFILES["web"], max_batch=8)]


def engine_and_model(deployment: Deployment) -> str:
    """What a measured profile is of: the engine's name and its model, or what it is where it has none."""
    config = deployment.replicas[0].config
    model = getattr(config, "model", None) or getattr(config, "path", None)
    if model is None:
        return f"{deployment.name}:{type(config).__name__.removesuffix('Config')}"
    return f"{deployment.name}:{model_name(str(model))}"
