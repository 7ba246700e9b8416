from __future__ import annotations

import pytest
from support.llm_running import run, value

from stretto.engines.scripted.standin import (
    NO_ANSWER,
    StandIn,
    StandInConfig,
    quoted_answer,
    reformulate,
    sentences,
)
from stretto.model.tasks import Decode, Done
from stretto.model.values import Prompt, Segment

ASYNCIO = """# Asyncio

asyncio is a library to write concurrent code using the async/await syntax. It is used
as a foundation for many frameworks, e.g. Quart.

Event loop
==========

The event loop is the core of every asyncio application. Event loops run tasks and callbacks.

- Coroutines are declared with async def
"""


def prompt(**segments: str) -> Prompt:
    return (Segment("Do it well.\n"), *(Segment(text, name) for name, text in segments.items()))


def answer(**segments: str) -> object:
    return value(StandIn(StandInConfig()), prompt(**segments), Decode())


def test_sentences_are_unwrapped_and_without_headings_and_markers() -> None:
    assert sentences(ASYNCIO) == [
        "asyncio is a library to write concurrent code using the async/await syntax.",
        "It is used as a foundation for many frameworks, e.g. Quart.",
        "The event loop is the core of every asyncio application.",
        "Event loops run tasks and callbacks.",
        "Coroutines are declared with async def",
    ]


def test_long_runs_without_a_full_stop_are_clipped() -> None:
    (clipped,) = sentences("word " * 500)
    assert clipped == "word " * 60 + "…"


def test_answers_with_the_sentence_that_fits() -> None:
    assert answer(context=ASYNCIO, question="How are coroutines declared?") == (
        "Coroutines are declared with async def"
    )
    assert answer(context=ASYNCIO, question="What is at the core of an asyncio application?") == (
        "The event loop is the core of every asyncio application."
    )


def test_says_so_when_nothing_fits() -> None:
    assert answer(context=ASYNCIO, question="Who is the president of France?") == NO_ANSWER
    assert answer(question="Who is the president of France?") == NO_ANSWER


def test_keeps_the_draft_unless_the_context_fits_better() -> None:
    question = "What is the event loop of asyncio?"
    weak, strong = "A loop runs.", "The event loop of asyncio runs tasks."
    assert answer(question=question, context=ASYNCIO, draft=weak).startswith("The event loop is")  # type: ignore[attr-defined]
    assert answer(question=question, context="Loops are old.", draft=strong) == strong
    assert answer(question=question, context=strong, draft=strong) == strong
    assert quoted_answer(question, strong, NO_ANSWER) == strong


def test_without_a_question_the_first_sentence_is_echoed() -> None:
    assert answer(context=ASYNCIO).startswith("asyncio is a library")  # type: ignore[attr-defined]
    assert answer(note="One thing. Another thing.", report="First this. Then that.") == "First this."


def test_reformulates_the_question() -> None:
    question = "How does the event loop run callbacks in asyncio?"
    assert value(StandIn(StandInConfig()), prompt(question=question), Decode(items="json_list")) == [
        "How does the event loop run callbacks in asyncio",
        "event loop run callbacks asyncio",
        "definition of event loop run callbacks",
    ]


@pytest.mark.parametrize("max_items", [1, 2, 5])
@pytest.mark.parametrize("max_tokens", [5, 30])
def test_reformulations_differ_and_keep_their_limits(max_items: int, max_tokens: int) -> None:
    items = reformulate("What is the event loop of asyncio, exactly?", max_items, max_tokens)
    assert len({item.casefold() for item in items}) == len(items) == max_items
    assert sum(len(item.split()) for item in items) <= max_tokens


def test_question_without_a_word_has_no_reformulation() -> None:
    decode = Decode(items="json_list")
    assert value(StandIn(StandInConfig()), prompt(question="?"), decode) == []
    assert value(StandIn(StandInConfig()), (Segment("Write queries."),), decode) == []


def test_prefill_takes_a_step_per_512_words() -> None:
    llm = StandIn(StandInConfig())
    for words, num_cached in (("a " * 1200, 0), ("a " * 1200 + "b " * 600, 1200)):
        ending = run(llm, (Segment(words),), None)
        assert isinstance(ending, Done)
        assert ending.usage.num_cached_tokens == num_cached


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("The captain lived at the inn.", "yes"), ("It was a cold day.", "no"), (NO_ANSWER, "no")],
)
def test_a_text_for_a_question_is_judged(text: str, verdict: str) -> None:
    assert answer(question="Where did the captain live?", text=text) == verdict
