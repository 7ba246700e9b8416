"""`stretto models`, and commands whose default model was not fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import CommandLine

from stretto.engines import llms


def test_models_are_listed(stretto: CommandLine) -> None:
    ended = stretto("models")
    assert ended.code == 0
    assert ended.out.startswith("smollm2: SmolLM2-135M-Instruct (GGUF, Q4_1), 98 MB, Apache-2.0: not on this")
    assert "`stretto models add smollm2` fetches it" in ended.out


def test_wrong_words_are_refused(stretto: CommandLine) -> None:
    assert stretto.refuses("models", "remove").startswith("ConfigError: there is no action 'remove'")
    assert stretto.refuses("models", "add").startswith("ConfigError: name the model to add")
    assert stretto.refuses("models", "list", "smollm2").startswith("ConfigError: a NAME and --wheel are for")
    assert "there are smollm2" in stretto.refuses("models", "add", "gpt")


@pytest.mark.parametrize("options", [(), ("--llm", "smollm2")])
def test_without_the_default_model_ask_names_the_command(
    stretto: CommandLine, doc: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(llms, "DEFAULT_LLM", "smollm2")
    refused = stretto.refuses("ask", "Where?", "--docs", doc, *options)
    assert "`stretto models add smollm2` fetches it (98 MB)" in refused


def test_without_the_default_model_serve_names_the_command(
    stretto: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llms, "DEFAULT_LLM", "smollm2")
    assert "`stretto models add smollm2` fetches it (98 MB)" in stretto.refuses("serve", "--port", "0")
