"""`stretto ask` says how an answer has ended, and which model of a server it asks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, running
from support.plain_server import Answered, PlainServer, as_events, as_json, listing

QUESTION = "Where did the captain live?"


@contextmanager
def server(
    *deltas: Mapping[str, object], finish: str = "stop", models: tuple[str, ...] = ("m",)
) -> Iterator[PlainServer]:
    """Run a server whose chats are answered with these deltas; yield it."""

    def answer(what: str, body: Mapping[str, Any]) -> Answered:
        if what == "GET /v1/models":
            return listing(*models)
        if what != "POST /v1/chat/completions":
            return as_json({"detail": "Not Found"}, 404)
        text = "".join(str(delta.get("content") or "") for delta in deltas)
        if not body.get("stream"):
            whole = {key: value for delta in deltas for key, value in delta.items()}
            message = {**whole, "content": text}
            return as_json({"choices": [{"message": message, "finish_reason": finish}]})
        last = {"choices": [{"delta": {}, "finish_reason": finish}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}}
        return as_events(*({"choices": [{"delta": delta}]} for delta in deltas), last, usage)

    plain = PlainServer(answer)
    with running(plain):  # type: ignore[arg-type]
        yield plain


def ask(stretto: CommandLine, doc: Path, url: str, *options: object) -> tuple[object, str, str]:
    args = ("ask", QUESTION, "--docs", doc, "--app", "naive", "--llm", url, "--api", "chat", *options)
    ended = stretto(*args)
    return ended.code, ended.out, ended.err


@pytest.mark.parametrize(
    ("deltas", "finish", "first_line", "reason"),
    [
        (({"content": "At an inn."},), "stop", "At an inn.", "stop"),
        (({"content": "At an"},), "length", "At an [cut at 7 tokens]", "length"),
        (
            ({"content": "At"},),
            "content_filter",
            "At [ended by the server's content filter]",
            "content_filter",
        ),
        (
            (),
            "content_filter",
            "The LLM gave no answer. [ended by the server's content filter]",
            "content_filter",
        ),
        (({"content": ""},), "stop", "The LLM gave no answer.", "stop"),
        (
            ({"reasoning_content": "Let me think"},),
            "length",
            "The LLM gave no answer. [7 tokens of thoughts, and nothing after them]",
            "thoughts",
        ),
        (
            ({"content": "<think>Let me"},),
            "length",
            "The LLM gave no answer. [7 tokens of thoughts, and nothing after them]",
            "thoughts",
        ),
        (({"content": "<think>Hm.</think>"}, {"content": "\n\nAt an inn."}), "stop", "At an inn.", "stop"),
    ],
)
def test_how_an_answer_has_ended_is_said(
    stretto: CommandLine,
    doc: Path,
    deltas: tuple[Mapping[str, object], ...],
    finish: str,
    first_line: str,
    reason: str,
) -> None:
    with server(*deltas, finish=finish) as one:
        code, out, _ = ask(stretto, doc, one.url)
        assert (code, out.splitlines()[0]) == (0, first_line)
        assert "No passage was found" not in out
        assert str(doc) in out  # its source
        code, out, _ = ask(stretto, doc, one.url, "--json")
    assert json.loads(out)["finish_reason"] == reason
    assert json.loads(out)["answer"] in first_line


def test_how_an_answer_has_ended_is_kept_in_the_journal(
    stretto: CommandLine, doc: Path, tmp_path: Path
) -> None:
    printed, num_asked = [], []
    with server({"content": "At an"}, finish="length") as one:
        for _ in range(2):
            printed.append(ask(stretto, doc, one.url, "--json", "--journal", tmp_path / "journal"))
            num_asked.append(len(one.asked))
    assert num_asked[0] == num_asked[1]
    assert printed[0][1] == printed[1][1]
    assert json.loads(printed[1][1])["finish_reason"] == "length"


def test_a_model_of_several_is_named(stretto: CommandLine, doc: Path) -> None:
    with server({"content": "So."}, models=("one", "two")) as many:
        refused = stretto.refuses("ask", QUESTION, "--docs", doc, "--app", "naive", "--llm", many.url)
        assert "ConfigError" in refused
        assert "the server lists 2 models; name the one to use: one, two (option --model" in refused
        assert ask(stretto, doc, many.url, "--model", "two")[1].startswith("So.")
        assert many.asked[-1][1]["model"] == "two"
        assert ask(stretto, doc, many.url, "--model", "unlisted")[1].startswith("So.")


def test_an_embedder_is_not_asked_for_an_answer(stretto: CommandLine, doc: Path) -> None:
    with server({"content": "So."}, models=("nomic-embed-text", "whisper-1", "llama3.1:8b")) as many:
        assert ask(stretto, doc, many.url)[1].startswith("So.")
        assert many.asked[-1][1]["model"] == "llama3.1:8b"


def test_the_url_of_a_chat_says_which_api_to_use(stretto: CommandLine, doc: Path) -> None:
    with server({"content": "So."}) as one:
        url = f"{one.url}/v1/chat/completions"
        ended = stretto("ask", QUESTION, "--docs", doc, "--app", "naive", "--llm", url)
    assert ended.out.startswith("So."), ended.err
