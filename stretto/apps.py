"""Ready-made apps of the Teola paper: document question answering, and search-empowered generation.

Source: Teola Figure 2a, 2c and 2d, §7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.components.rag import Indexing, QueryExpansion, Reranking, Searching, Synthesis
from stretto.components.search import Generation, Judge, Reading, WebSearch
from stretto.frontend.component import Input
from stretto.frontend.template import Template


def naive_rag(*, named_collection: bool = False) -> Template:
    """App: index, search with the question itself, answer from each of the best 3 and combine (tree)."""
    question, files, collection = _inputs(named_collection)
    indexing = Indexing(files=files, **collection)
    searching = Searching(queries=question, indexed=indexing["indexed"], top_k=3, **collection)
    synthesis = Synthesis(question=question, hits=searching["hits"], mode="tree")
    return Template(
        "naive_rag",
        indexing >> searching >> synthesis,
        {"answer": synthesis["answer"], "sources": searching["hits"]},
    )


def advanced_rag(*, named_collection: bool = False) -> Template:
    """App: index, expand the question, search with each query, rerank, answer from the best 3 (refine)."""
    question, files, collection = _inputs(named_collection)
    indexing = Indexing(files=files, **collection)
    expansion = QueryExpansion(question=question)
    searching = Searching(queries=expansion["queries"], indexed=indexing["indexed"], **collection)
    reranking = Reranking(question=question, hits=searching["hits"])
    synthesis = Synthesis(question=question, hits=reranking["top"], mode="refine")
    return Template(
        "advanced_rag",
        indexing >> expansion >> searching >> reranking >> synthesis,
        {"answer": synthesis["answer"], "sources": reranking["top"]},
    )


def search_empowered() -> Template:
    """App: a small LLM drafts an answer and judges it; if it is not good, search; then the core LLM answers.

    The core LLM reads the search results, or the draft if there was no search or nothing was found.
    Engines: `llm_small`, `web` and `llm`.
    """
    question = Input("question", "text")
    proxy = Generation(name="proxy", question=question, engine="llm_small")
    judge = Judge(question=question, text=proxy["text"], engine="llm_small")
    search = WebSearch(queries=question, needed=judge["no"])
    reading = Reading(hits=search["hits"], draft=proxy["text"])
    answer = Generation(name="answer", question=question, context=reading["context"], prompt="answer")
    return Template(
        "search_empowered",
        proxy >> judge >> search >> reading >> answer,
        {"answer": answer["text"], "sources": search["hits"]},
    )


def _inputs(named_collection: bool) -> tuple[Input, Input, dict[str, Any]]:
    """Inputs of the RAG apps. With a named collection, queries bring its name as the input `collection`."""
    collection = {"collection": Input("collection", "text")} if named_collection else {}
    return Input("question", "text"), Input("files", "list[document]"), collection


APPS: dict[str, Callable[..., Template]] = {"naive": naive_rag, "advanced": advanced_rag}
"""Apps that answer from documents of the query, by name."""
