"""A command line with its own folders, and with models that are loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine

TEXT = """\
The Admiral Benbow is an inn near a cove. The captain lived at the inn with his sea chest.
Doctor Livesey came late one afternoon to see a patient. He had a bit of dinner with my mother.
"""


@pytest.fixture(scope="session")
def _models() -> Iterator[None]:
    """The embedder and the tokenizer, for all commands of the session."""
    from stretto.engines.chunking import Chunking, ChunkingConfig
    from stretto.engines.embedding import Embedding, EmbeddingConfig

    embedding, chunking = Embedding(EmbeddingConfig(num_threads=1)), Chunking(ChunkingConfig())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stretto.engines.local.Embedding", lambda config: embedding)
        patch.setattr("stretto.engines.local.Chunking", lambda config: chunking)
        yield


@pytest.fixture
def stretto(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    _models: None,
) -> CommandLine:
    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.delenv("STRETTO_DSN", raising=False)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def doc(tmp_path: Path) -> Path:
    """A document of four sentences."""
    path = tmp_path / "inn.txt"
    path.write_text(TEXT)
    return path
