"""The engines of this machine, ready to register: what the command line and the examples run on.

Profiles are of two cores of a server CPU without a GPU; `stretto profile` measures others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.costs.profile import Profile
from stretto.engine import Engine
from stretto.engines.base import SteppedLLM
from stretto.engines.chunking import Chunking, ChunkingConfig
from stretto.engines.embedding import MINILM, Embedding, EmbeddingConfig
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.reranking import Reranking, RerankingConfig
from stretto.engines.standin import StandIn, StandInConfig
from stretto.engines.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.errors import ConfigError

PROFILES: Mapping[str, Profile] = {
    "chunking": Profile(base_s=0.0002, per_unit_s=0.02, max_efficient_batch=1),
    "embedding": Profile(base_s=0.004, per_unit_s=0.03, max_efficient_batch=16),
    "vectors": Profile(base_s=0.0002, per_unit_s=0.00001, max_efficient_batch=256),
    "reranking": Profile(base_s=0.0002, per_unit_s=0.0002, max_efficient_batch=64),
    "llm": Profile(base_s=0.0, per_unit_s=0.00007, per_output_s=0.004),
}


def llm_engine(where: str | None, *, instances: int = 1) -> Engine:
    """The LLM engine for `--llm`: a server's URL, a checkpoint's directory, or None for the stand-in.

    Raises:
        ConfigError: there is no such directory.
    """
    if where is None:
        return _in_process(StandIn, StandInConfig(), instances)
    if where.startswith(("http://", "https://")):
        server = OpenAIServerConfig(where)
        return Engine(
            "llm", OpenAIServer, server, kind="llm_server", profile=PROFILES["llm"], instances=instances
        )
    if not Path(where).is_dir():
        raise ConfigError(f"--llm {where!r} is neither a URL nor a directory with a checkpoint")
    from stretto.engines.reference import ReferenceConfig, ReferenceLLM  # torch: only if wanted

    return _in_process(ReferenceLLM, ReferenceConfig(where), instances)


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
    profiles: Mapping[str, Profile] | None = None,
) -> list[Engine]:
    """All engines that the ready-made apps name, one instance of each.

    Args:
        llm: default: the stand-in, which is no language model.
        vectors: default: in memory.
        embedding_model: a sentence-transformers name or path.
        reranking_model: a cross-encoder's name or path; None scores by words.
        profiles: measured profiles, by engine, in place of the built-in ones.
    """
    engines = [
        Engine("chunking", Chunking, ChunkingConfig(), profile=PROFILES["chunking"]),
        Engine("embedding", Embedding, EmbeddingConfig(embedding_model), profile=PROFILES["embedding"]),
        vectors or vectors_engine(),
        Engine("reranking", Reranking, RerankingConfig(reranking_model), profile=PROFILES["reranking"]),
        llm or llm_engine(None),
    ]
    measured = profiles or {}
    return [replace(engine, profile=measured.get(engine.name, engine.profile)) for engine in engines]
