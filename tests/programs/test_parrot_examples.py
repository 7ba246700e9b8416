"""The programs of semantic variables run, and ask what they should."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from support.programs import EXAMPLES, Desk, desk_llm
from support.programs import load_example as load
from support.virtual_loop import in_virtual_time

from stretto import Runtime
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine


def run(program: Callable[..., Any], *args: object, answer: Callable[[str], str]) -> tuple[Any, Desk]:
    """Return what a program returns, an iterator as a list, and what the LLM was asked."""
    desk = Desk(answer)
    with Runtime([desk_llm(desk), transforms_engine()]) as runtime, P.Client(runtime, passes="none"):
        found = program(*args)
        return (found if isinstance(found, str | list | tuple) else list(found)), desk


def last_line(prompt: str) -> str:
    return f"<{prompt.splitlines()[-1]}>"


def test_hello_world() -> None:
    found, desk = run(load("hello_world").main, "Hello {{x}}!", answer=last_line)
    assert found == "<Repeat this text word by word: Hello {{x}}!>"
    assert desk.prompts == ["Repeat this text word by word: Hello {{x}}!\n"]


def test_fact_with_title() -> None:
    found, desk = run(load("fact_with_title").main, "cats", answer=lambda _: "They purr.")
    assert found == "Cats\n----\nThey purr."
    assert desk.decodes[0].max_tokens == 60


def test_capitals() -> None:
    example = load("capitals")

    def answer(prompt: str) -> str:
        if "language" in prompt:
            return "spoken"
        (country,) = re.findall("capital of (.*?)[?]", prompt)
        return f"city {example.COUNTRIES.index(country)}"

    found, desk = run(example.main, answer=answer)
    assert found == [(f"city {place}", "spoken") for place in range(6)]
    assert "What is the capital of Japan?city 1And which language do people speak there?" in desk.prompts
    assert sorted(decode.temperature for decode in desk.decodes) == 6 * [0.0] + 6 * [0.1]


def test_sentences_as_json() -> None:
    found, desk = run(load("sentences_as_json").main, ["Kim is 5.\n", "Luc is 6.\n"], answer=lambda _: "{}")
    assert found == 2 * ["{}"]
    assert all("with the keys {name}, {age} and {city}, and nothing else." in one for one in desk.prompts)
    assert desk.decodes[0].stop == ("\n",)
    assert [re.search("(Kim|Luc) is", prompt)[1] for prompt in desk.prompts] == ["Kim", "Luc"]  # type: ignore[index]


def test_question_answering() -> None:
    found, desk = run(load("question_answering").main, ["a?", "b?"], answer=lambda p: p.splitlines()[1])
    assert found == ["Question: a?", "Question: b?"]
    assert all(prompt.endswith("\nAnswer: ") for prompt in desk.prompts)


def test_simple_codegen() -> None:
    found, desk = run(load("simple_codegen").main, "x", answer=lambda _: "x()")
    assert found == "x()"
    assert desk.prompts[0].startswith("!!! Rules\n")
    assert "\n      len(xs)\n- Write nothing" in desk.prompts[0]


def test_chain() -> None:
    found, desk = run(load("chain").main, "it", answer=lambda prompt: f"a{len(prompt) % 7}")
    assert len(found) == len(desk.prompts) == 3
    questions = (
        "In which city is it?",
        f"Which country is {found[0]} the capital of?",
        f"speak in {found[1]}?",
    )
    for prompt, question in zip(desk.prompts, questions, strict=True):
        assert prompt.endswith(question)


@in_virtual_time
async def test_reviews() -> None:
    desk = Desk(lambda prompt: "bad" if "X" in prompt else prompt.split("sentence: ")[1][0].upper())
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        found = await load("reviews").main(["x", "y"])
        num_plans = len(runtime.plan_cache._plans)
    assert found == (["X", "Y"], "bad")
    assert desk.prompts[-1].endswith("X\nY")
    assert num_plans == 1, "one graph, one trip"


def test_role_play() -> None:
    example = load("role_play")
    found, desk = run(example.main, answer=lambda prompt: prompt.partition("I steer.")[2].strip() or "Aye.")
    assert found == [("Aye.", question) for question in example.QUESTIONS]
    assert len(desk.prompts) == 2 * len(example.QUESTIONS)
    assert len({prompt for prompt in desk.prompts if "Aye." not in prompt}) == 1


def test_every_program_has_a_test() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert len(names) == 9
    assert {f"test_{name}" for name in names} <= globals().keys()
