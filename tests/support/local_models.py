"""The models of this machine's engines, loaded once for all tests of a session that use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.llm_size import is_small_llm
from stretto.engines.llms import STAND_IN
from stretto.model.extras import is_installed

assert not is_small_llm(STAND_IN)  # whatever is imported first: its module keeps the name of the default LLM


@cache
def _load() -> tuple[Embedding, Chunking]:
    return Embedding(EmbeddingConfig(num_threads=1)), Chunking(ChunkingConfig())


@contextmanager
def models_loaded_once(llm: str = STAND_IN) -> Iterator[None]:
    """Make `local_engines` use models that are loaded already, and this LLM, while this context lasts."""
    if not is_installed("sentence_transformers"):  # an import would take seconds
        pytest.skip("sentence_transformers is not installed")
    embedding, chunking = _load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stretto.engines.catalogue.Embedding", lambda config: embedding)
        patch.setattr("stretto.engines.catalogue.Chunking", lambda config: chunking)
        patch.setattr("stretto.engines.llms.DEFAULT_LLM", llm)
        yield
