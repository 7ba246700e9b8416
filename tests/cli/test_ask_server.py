"""`stretto ask` on a server: how prompts are sent to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, serving
from support.openai_stub import Reply

from stretto.engines.llms import FOR_SERVERS, llm_engine
from stretto.model.replica import Engine

pytest_plugins = ("support.llm_fixtures",)

QUESTION = "Where did the captain live?"


@pytest.mark.parametrize("how", ["chat", "text", "ids"])
def test_prompts_go_as_they_are_wanted(
    stretto: CommandLine, doc: Path, how: str, tiny_checkpoint: Path
) -> None:
    requests: list[Mapping[str, Any]] = []

    def answer(request: Mapping[str, Any]) -> Reply:
        requests.append(request)
        return Reply(("At an inn.",))

    options = {"chat": (), "text": ("--api", "completions"), "ids": ("--tokenizer", tiny_checkpoint)}[how]
    with serving(answer) as url:
        ended = stretto("ask", QUESTION, "--docs", doc, "--app", "naive", "--llm", url, *options)
    assert (ended.code, ended.out) == (
        0,
        f"At an inn.\n  1. {doc}, lines 1–2: “The captain lived at the inn with his sea chest.”\n",
    )
    for request in requests:
        assert ("messages" in request) == (how == "chat")
        assert isinstance(request.get("prompt"), list) == (how == "ids")


def test_what_is_for_servers_is_refused_without_one(stretto: CommandLine, doc: Path, tmp_path: Path) -> None:
    args = ("ask", QUESTION, "--docs", doc)
    for option in (("--api", "chat"), ("--tokenizer", tmp_path), ("--model", "m")):
        assert stretto.refuses(*args, *option).startswith(f"ConfigError: {FOR_SERVERS}")
    refused = stretto.refuses(*args, "--llm", "http://127.0.0.1:9", "--api", "voice")
    assert refused == "ConfigError: there is no api 'voice'; there are auto, completions, chat"


def test_a_tokenizer_that_cannot_be_loaded_fails_the_question(
    stretto: CommandLine, doc: Path, tmp_path: Path
) -> None:
    with serving(lambda _: Reply(("so",))) as url:
        refused = stretto.refuses(
            "ask", QUESTION, "--docs", doc, "--llm", url, "--tokenizer", tmp_path / "no", code=2
        )
    assert "ConfigError" in refused
    assert str(tmp_path / "no") in refused


def test_a_server_that_refuses_is_waited_for_as_long_as_the_help_says(
    stretto: CommandLine,
) -> None:
    words = re.findall(r"[\w.]+", stretto("ask", "--help").out)
    assert "waits 2 s for a server that refuses" in " ".join(words)
    assert llm_engine("http://127.0.0.1:9").engine.recover_s == 2.0
    assert Engine("llm", "llm").recover_s == 60.0
