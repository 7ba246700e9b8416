"""Answers of small LLMs: taken where the best sentence of the hits supports them, else a draft or a quote."""

from __future__ import annotations

from typing import Any

import pytest
from support.runtime_engines import AtOnce
from support.virtual_loop import in_virtual_time

from stretto import Chunk, Hit, Input, Runtime, Template
from stretto.apps import APPS, search_empowered
from stretto.apps.components.synthesis import MODES
from stretto.components import Synthesis
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.graph.text import print_graph
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import ABSENT

QUESTION = "When did the mill burn down?"
BEST = "The mill burned down in May 1874."
HITS = [
    Hit(Chunk("a", 0, f"Flour was dear then. {BEST}"), 0.9),
    Hit(Chunk("a", 1, "The mill was built by Hale in 1831. It stands on the Avon."), 0.8),
]


def llm(*replies: str) -> Deployment:
    """An LLM that gives these replies, one after the other, and the last one from then on."""
    left = list(replies)

    def write(task: LLMTask, decode: Decode) -> str:
        return left.pop(0) if len(left) > 1 else left[0]

    return deploy("llm", lambda _: AtOnce(ScriptedLLM(write, 16)), contract="llm", runs_in="loop")


async def answered(*replies: str, hits: list[Hit] = HITS, **settings: Any) -> object:
    return await answer_of(llm(*replies), hits, **settings)


async def answer_of(
    deployment: Deployment, hits: list[Hit], question: str = QUESTION, **settings: Any
) -> object:
    synthesis = Synthesis(question=Input("question", "text"), hits=Input("hits", "list[hit]"), **settings)
    app = Template("t", synthesis, {"answer": synthesis["answer"]})
    async with Runtime([deployment]) as runtime:
        return (await runtime.run(app, {"question": question, "hits": hits}))["answer"]


@in_virtual_time
async def test_a_later_answer_without_support_gives_way_to_the_draft() -> None:
    replies = ("In May 1874.", "Hale built it.")
    assert await answered(*replies, mode="refine", support=1.0) == "In May 1874."
    assert await answered(*replies, mode="refine") == "Hale built it."


@in_virtual_time
async def test_a_later_answer_with_support_is_taken() -> None:
    replies = ("In May.", "It burned down in May 1874.")
    assert await answered(*replies, mode="refine", num_hits=2, support=1.0) == replies[1]


@pytest.mark.parametrize("mode", MODES)
@in_virtual_time
async def test_without_a_supported_answer_the_best_sentence_is_quoted(mode: str) -> None:
    assert await answered("In June 1901.", mode=mode, support=1.0) == BEST
    assert await answered("In June 1901.", mode=mode) == "In June 1901."


@pytest.mark.parametrize("mode", MODES)
@in_virtual_time
async def test_hits_without_the_words_of_the_question_are_said_to_be_no_answer(mode: str) -> None:
    hits = [Hit(Chunk("a", 0, "The moon is far. A windmill burned."), 0.9)]
    nearest = "Probably not in the documents. The nearest sentence: A windmill burned."
    question = "Which miller burned the bread?"
    assert await answered("A windmill.", hits=hits, question=question, mode=mode, support=1.0) == nearest
    question = "Who is the president of Mongolia?"
    nothing = await answered("A windmill.", hits=hits, question=question, mode=mode, support=1.0)
    assert nothing == "Probably not in the documents."


@in_virtual_time
async def test_an_answer_to_one_hit_stands_in_for_a_bad_combination() -> None:
    replies = ("In May 1874.", "In May 1874.", "The drafts say so.")
    assert await answered(*replies, mode="tree", num_hits=2, support=1.0) == "In May 1874."


@in_virtual_time
async def test_a_quote_is_all_that_the_llm_reads() -> None:
    read: list[str] = []

    def write(task: LLMTask, decode: Decode) -> str:
        read.extend(segment.text for segment in task.prompt if segment.name == "context")
        return "in May"

    deployment = deploy("llm", lambda _: AtOnce(ScriptedLLM(write, 16)), contract="llm", runs_in="loop")
    assert await answer_of(deployment, HITS, mode="quote") == "in May"
    assert read == [BEST]


@in_virtual_time
async def test_without_hits_there_is_no_answer() -> None:
    assert await answered("In June.", hits=[], mode="refine", support=1.0) is ABSENT


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_support_is_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match=f"support={share} is no share: it must be from 0 to 1"):
        Synthesis(question=Input("question", "text"), hits=Input("hits", "list[hit]"), support=share)


@pytest.mark.parametrize("make", [*APPS.values(), search_empowered])
def test_ready_made_apps_for_small_llms_ask_once_and_check_the_answer(make: type) -> None:
    graph = make(small_llm=True).lower({})
    assert [one.name for one in graph.primitives if one.op == "decode"] == ["answer"]
    assert dict(graph.outputs)["answer"].name == "supported"
    assert "supported(" not in print_graph(make().lower({}))
