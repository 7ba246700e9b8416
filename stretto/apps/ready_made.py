"""Ready-made apps of the Teola paper: document question answering, search-empowered generation, an agent.

Source: Teola Figure 2, §7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.apps.components.agent import Agent
from stretto.apps.components.component import Input
from stretto.apps.components.rag import Indexing, QueryExpansion, Reranking, Searching
from stretto.apps.components.search import Generation, Judge, Reading, WebSearch
from stretto.apps.components.synthesis import Synthesis
from stretto.apps.template import Template
from stretto.model.tools import Tool

_SMALL_CHUNKS: Mapping[str, Any] = {"tokens": 128, "overlap": 16}
_SMALL_SYNTHESIS: Mapping[str, Any] = {
    "mode": "quote",
    "support": 1.0,
    "max_tokens": 40,
    "prompt": "answer_shortly",
}
"""Settings for an LLM of less than a billion parameters: it reads one sentence, is shown examples, and its
answer counts only where that sentence has its words. Measured: docs/answers.md."""


def naive_rag(*, named_collection: bool = False, small_llm: bool = False) -> Template:
    """Return the app that answers a question from documents with a plain search.

    It indexes the documents, searches with the question itself, answers from each of the best 3 passages, and
    combines these answers. With `named_collection`, queries bring the name of a collection to index into.
    With `small_llm`, it finds the best sentence of the 3 passages, and shortens or quotes it.
    """
    question, files, collection = _inputs(named_collection)
    indexing = Indexing(files=files, **collection, **(_SMALL_CHUNKS if small_llm else {}))
    searching = Searching(queries=question, indexed=indexing["indexed"], top_k=3, **collection)
    settings = _SMALL_SYNTHESIS if small_llm else {"mode": "tree"}
    synthesis = Synthesis(question=question, hits=searching["hits"], **settings)
    return Template(
        "naive_rag",
        indexing >> searching >> synthesis,
        {"answer": synthesis["answer"], "sources": searching["hits"]},
    )


def advanced_rag(*, named_collection: bool = False, small_llm: bool = False) -> Template:
    """Return the app that answers a question from documents with query expansion and reranking.

    It indexes the documents, lets an LLM reword the question, searches with each version, reranks the hits,
    answers from the best one and refines the answer with the next two. With `named_collection`, queries bring
    the name of a collection to index into. With `small_llm`, the question is searched for as it is, for such
    an LLM rewords it badly, and the best sentence is shortened or quoted.
    """
    question, files, collection = _inputs(named_collection)
    indexing = Indexing(files=files, **collection, **(_SMALL_CHUNKS if small_llm else {}))
    expansion = None if small_llm else QueryExpansion(question=question)
    queries = question if expansion is None else expansion["queries"]
    searching = Searching(queries=queries, indexed=indexing["indexed"], **collection)
    reranking = Reranking(question=question, hits=searching["hits"])
    settings = _SMALL_SYNTHESIS if small_llm else {"mode": "refine"}
    synthesis = Synthesis(question=question, hits=reranking["top"], **settings)
    return Template(
        "advanced_rag",
        (indexing if expansion is None else indexing >> expansion) >> searching >> reranking >> synthesis,
        {"answer": synthesis["answer"], "sources": reranking["top"]},
    )


def search_empowered(*, small_llm: bool = False) -> Template:
    """Return the app that searches the web only if an LLM cannot answer a question by itself.

    A small LLM drafts an answer and judges it; if it is not good, the web is searched; then the main LLM
    answers. It reads the search results, or the draft if there was no search or nothing was found. Engines:
    `llm_small`, `web` and `llm`.

    With `small_llm`, no draft is made, for such an LLM knows too little to answer or judge by itself: the web
    is always searched, and the best sentence of the results is shortened or quoted.
    """
    question = Input("question", "text")
    if small_llm:
        found = WebSearch(queries=question)
        synthesis = Synthesis(question=question, hits=found["hits"], **_SMALL_SYNTHESIS)
        return Template(
            "search_empowered",
            found >> synthesis,
            {"answer": synthesis["answer"], "sources": found["hits"]},
        )
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


def agent(
    tools: Sequence[Tool | Callable[..., object]], *, named_run: bool = False, **settings: Any
) -> Template:
    """Return the app in which an LLM answers a question with the help of tools, in several turns.

    Engines: `llm`, and `tools`, which `stretto.engines.catalogue.tools_engine` makes of the same tools. With
    `named_run`, queries bring a name of the run as the input `run_name`. Other settings are those of the
    component `Agent`, such as `instructions` and `max_turns`.

    Source: Teola Figure 2b.
    """
    named: dict[str, Any] = {"run_name": Input("run_name", "text")} if named_run else {}
    answering = Agent(question=Input("question", "text"), tools=tuple(tools), **settings, **named)
    return Template("agent", answering, {"answer": answering["answer"], "run": answering["run"]})


def _inputs(named_collection: bool) -> tuple[Input, Input, dict[str, Any]]:
    """Inputs of the RAG apps. With a named collection, queries bring its name as the input `collection`."""
    collection = {"collection": Input("collection", "text")} if named_collection else {}
    return Input("question", "text"), Input("files", "list[document]"), collection


APPS: dict[str, Callable[..., Template]] = {"naive": naive_rag, "advanced": advanced_rag}
"""Table of the apps that answer questions from given documents, by name."""
