"""Checkpoints for the tests of LLM engines. Taken with `pytest_plugins = ("support.llm_fixtures",)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiny_checkpoint import build_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random Llama without a chat template."""
    return build_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_chat_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random Llama with a chat template."""
    return build_tiny_checkpoint(tmp_path_factory.mktemp("tiny_chat"), chat_template=True)
