"""Search in documents, behind the op of web search."""

from __future__ import annotations

import pytest

from stretto.engines.batch.corpus_search import CorpusSearch, CorpusSearchConfig
from stretto.model.errors import ConfigError
from stretto.model.tasks import Task
from stretto.model.values import Document, Hit, Section

pytest.importorskip("bm25s")

DOCUMENTS = (
    Document(
        "rivers.txt", (Section("The Seine runs through Paris. The Danube runs to the sea.", "Rivers"),), "a"
    ),
    Document("food.txt", (Section("Bread is baked. Soup is cooked.", "Food", 3), Section("  ")), "b"),
)


def search(engine: CorpusSearch, query: str, k: int = 4) -> list[Hit]:
    (found,) = engine.run([Task(1, "q", "s", "web_search", {"queries": query}, {"k": k})])
    assert isinstance(found, list)
    return found


@pytest.fixture
def engine() -> CorpusSearch:
    return CorpusSearch(CorpusSearchConfig(DOCUMENTS, passage_chars=10))


def test_the_passage_with_the_words_of_the_query_wins(engine: CorpusSearch) -> None:
    found = search(engine, "Which river runs through Paris?")
    assert [hit.chunk.text for hit in found] == [
        "The Seine runs through Paris.",
        "The Danube runs to the sea.",
    ]
    assert found[0].score > found[1].score
    assert (found[0].chunk.source, found[0].chunk.title, found[0].chunk.num_chunks) == (
        "rivers.txt",
        "Rivers",
        2,
    )
    assert search(engine, "Which river runs through Paris?", k=1) == found[:1]


@pytest.mark.parametrize("query", ["", "zebra", "?", "the"])
def test_nothing_in_common_is_no_hit(engine: CorpusSearch, query: str) -> None:
    assert search(engine, query) == []


def test_a_passage_is_whole_sentences_of_one_section(engine: CorpusSearch) -> None:
    (hit,) = search(engine, "soup")
    assert (hit.chunk.text, hit.chunk.page, hit.chunk.index) == ("Soup is cooked.", 3, 1)
    long = CorpusSearch(CorpusSearchConfig(DOCUMENTS))
    assert search(long, "soup")[0].chunk.text == "Bread is baked. Soup is cooked."


def test_queries_of_one_batch_are_answered_in_order(engine: CorpusSearch) -> None:
    inputs = {"queries": ["soup", "zebra"]}
    (found,) = engine.run([Task(1, "q", "s", "web_search", inputs, {"k": 2}, 2, ("queries",))])
    assert [len(hits) for hits in found] == [1, 0]  # type: ignore[attr-defined]


def test_documents_without_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="no text"):
        CorpusSearch(CorpusSearchConfig((Document("a", (Section(" \n"),), ""),)))
