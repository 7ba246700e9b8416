"""`stretto ask --app search`: over documents, or with a search service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.search_service import results, search_service

QUESTION = "Where did the captain live?"
ANSWER = "The captain lived at the inn with his sea chest."


@pytest.fixture
def service() -> Iterator[str]:
    """A search service that knows one page."""
    row = {"url": "https://example.org/inn", "title": "The inn", "content": ANSWER}
    with search_service(lambda query, number: (200, results(row))) as (url, _):
        yield url


@pytest.mark.parametrize("passes", ["all", "none"])
def test_documents_are_searched(stretto: CommandLine, doc: Path, passes: str) -> None:
    pytest.importorskip("bm25s")
    ended = stretto("ask", QUESTION, "--app", "search", "--docs", doc, "--json", "--passes", passes)
    row = json.loads(ended.out)
    assert (row["answer"], row["error"]) == (ANSWER, None)
    assert [source["file"] for source in row["sources"]] == [str(doc)]


def test_a_service_is_searched(stretto: CommandLine, service: str) -> None:
    pytest.importorskip("httpx")
    ended = stretto("ask", QUESTION, "--app", "search", "--search", service)
    assert (ended.code, ended.out) == (0, f"{ANSWER}\n  1. https://example.org/inn, The inn\n")


def test_a_service_that_is_not_there_is_an_error_of_the_step(stretto: CommandLine) -> None:
    pytest.importorskip("httpx")
    ended = stretto("ask", QUESTION, "--app", "search", "--search", "http://127.0.0.1:9", "--json")
    assert ended.code == 1
    assert json.loads(ended.out)["error"].startswith("EngineUnavailable: step 'found': cannot reach")


def test_there_must_be_something_to_search_in(stretto: CommandLine, doc: Path) -> None:
    assert "--docs" in stretto.refuses("ask", QUESTION, "--app", "search")
    args = ("ask", QUESTION, "--app", "search", "--docs", doc, "--collection", "c")
    assert "keeps no --collection" in stretto.refuses(*args)


def test_it_is_explained(stretto: CommandLine) -> None:
    out = stretto("explain", "--app", "search", "--whole").out
    assert "%found" in out
    assert "web_search(" in out
