"""Engine that searches a fixed set of documents by words (BM25), in place of a web search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stretto.documents.sentences import split_sentences
from stretto.engines.batch.applications import OpApplication, answer_batch, setting
from stretto.engines.contract import BatchEngine
from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.model.tasks import Task
from stretto.model.tools import Tool
from stretto.model.values import Chunk, Document, Hit, document_order


@dataclass(frozen=True, slots=True)
class CorpusSearchConfig:
    """Configuration of `CorpusSearch`, the engine that searches documents by words: the documents, and the
    approximate length of a passage in characters.

    A passage is made of whole sentences of one section.
    """

    documents: tuple[Document, ...]
    passage_chars: int = 600


class CorpusSearch(BatchEngine):
    """A search engine (BM25) over a fixed set of documents, which answers in place of a web search.

    It runs the op `web_search`: input `queries` (a text); setting `k`. It answers up to `k`
    hits, which are passages of the documents. Passages that share no word with the text are not hits. Equal
    scores are in document order.
    """

    op_names = ("web_search",)

    def __init__(self, config: CorpusSearchConfig) -> None:
        """Index the documents.

        Raises:
            ConfigError: the documents contain no text, or packages are missing.
        """
        with imports_of("local", "search in documents"):
            import bm25s
        self._passages = list(_passages(config))
        if not self._passages:
            raise ConfigError("there is no text to search in")
        tokens = bm25s.tokenize([p.text for p in self._passages], return_ids=False, show_progress=False)
        self._tokenize = bm25s.tokenize
        self._words = {word for words in tokens for word in words}
        self._index = bm25s.BM25(backend="numpy")
        self._index.index(tokens, show_progress=False)

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Answer each task with the best passages for its search text."""
        return answer_batch(tasks, {"web_search": self._search})

    def _search(self, applications: Sequence[OpApplication]) -> list[object]:
        return [self.hits(a.require("queries", str), setting(a.task, "k", int, 4)) for a in applications]

    def hits(self, query: str, k: int) -> list[Hit]:
        """Return up to `k` of the best passages for a search text, best first."""
        (words,) = self._tokenize([query], return_ids=False, show_progress=False)
        known = [word for word in words if word in self._words]
        if not known:
            return []
        scores = self._index.get_scores(known)
        found = [Hit(p, float(score)) for p, score in zip(self._passages, scores, strict=True) if score > 0]
        return document_order(found)[:k]


def search_tool(documents: Sequence[Document], k: int = 2) -> Tool:
    """Return a tool with which an agent searches documents by words; its result is the best `k` passages.

    Raises:
        ConfigError: the documents contain no text, or packages are missing.
    """
    search = CorpusSearch(CorpusSearchConfig(tuple(documents)))
    return Tool(
        "search", "passages of the documents that have given words", lambda words: search.hits(words, k)
    )


def _passages(config: CorpusSearchConfig) -> Iterable[Chunk]:
    for document in config.documents:
        found = [
            (section.title, section.page, section.text[start:end].strip())
            for section in document.sections
            for start, end in _spans(section.text, config.passage_chars)
        ]
        texts = [row for row in found if row[2]]
        for index, (title, page, text) in enumerate(texts):
            yield Chunk(document.source, index, text, title, page, document.sha256, len(texts))


def _spans(text: str, size: int) -> Iterable[tuple[int, int]]:
    """Yield half-open spans of whole sentences, each just long enough to reach `size` characters."""
    start: int | None = None
    end = 0
    for lo, end in split_sentences(text):
        start = lo if start is None else start
        if end - start >= size:
            yield start, end
            start = None
    if start is not None:
        yield start, end
