"""A command line with its own folders, and with models that are loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.local_models import models_loaded_once

TEXT = """\
The Admiral Benbow is an inn near a cove. The captain lived at the inn with his sea chest.
Doctor Livesey came late one afternoon to see a patient. He had a bit of dinner with my mother.
"""


@pytest.fixture
def stretto(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Iterator[CommandLine]:
    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.delenv("STRETTO_DSN", raising=False)
    with models_loaded_once():
        yield CommandLine(monkeypatch, capsys)


@pytest.fixture
def doc(tmp_path: Path) -> Path:
    """A document of four sentences."""
    path = tmp_path / "inn.txt"
    path.write_text(TEXT)
    return path
