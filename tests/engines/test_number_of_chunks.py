"""A document has few chunks for its bytes, because each chunk takes some thousand bytes of memory."""

from __future__ import annotations

import pytest

from stretto.documents.sentences import split_sentences
from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.model.errors import ConfigError
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Section


def chunks_of(text: str, max_chunks: int, **config: object) -> list[Chunk]:
    document = Document("a.txt", (Section(text),), sha256="abc")
    task = Task(1, "q", "chunks", "chunk", {"files": document}, config)
    (chunks,) = Chunking(ChunkingConfig(max_chunks=max_chunks)).run([task])
    assert isinstance(chunks, list)
    return chunks


def test_small_chunks_are_bounded_in_number() -> None:
    """The least chunks with the most overlap hold each word of a text many times."""
    text = "a b c d e f g. " * 1000
    with pytest.raises(ConfigError, match=r"more than 100 chunks.*choose more tokens") as refused:
        chunks_of(text, 100, tokens=16, overlap=13)
    assert refused.value.step == "chunks"
    assert len(chunks_of(text, 10_000, tokens=16, overlap=13)) > 100


def test_a_long_document_may_have_more_chunks() -> None:
    text = "A sentence with some words of usual length stands here for others. " * 1000
    assert 10 < len(chunks_of(text, 10)) <= len(text) / 200
    assert len(chunks_of("Ein längerer Satz mit üblichen Wörtern. " * 1000, 10)) > 10


def test_a_number_of_chunks_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_chunks is 0"):
        ChunkingConfig(max_chunks=0)


def test_sentences_are_found_one_by_one() -> None:
    """A list of millions of short ones would take many times the memory of their text."""
    sentences = split_sentences("A! " * 1000)
    assert next(sentences) == (0, 2)
    assert next(sentences) == (3, 5)
