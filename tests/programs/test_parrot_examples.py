"""The thirteen programs on which systems of semantic variables are compared run, and ask what they should."""

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


def test_joke_with_title() -> None:
    found, desk = run(load("joke_with_title").main, "cats", answer=lambda _: "Miaow.")
    assert found == "On cats\n-------\nMiaow."
    assert desk.decodes[0].max_tokens == 50


def test_explained_jokes() -> None:
    example = load("explained_jokes")

    def answer(prompt: str) -> str:
        if "explain" in prompt:
            return "why"
        (topic,) = re.findall("joke about (.*?)[.]", prompt)
        return f"joke {example.TOPICS.index(topic)}"

    found, desk = run(example.main, answer=answer)
    assert found == [(f"joke {place}", "why") for place in range(6)]
    assert "Tell me a joke about a cat.joke 1Good, then explain that joke." in desk.prompts
    assert sorted(decode.temperature for decode in desk.decodes) == 6 * [0.0] + 6 * [0.5]


def test_recommendation_letter() -> None:
    found, desk = run(load("recommendation_letter").main, answer=lambda _: "She is good.")
    assert found == "She is good."
    (prompt,) = desk.prompts
    assert prompt.startswith(
        "Write a letter of recommendation for Ada, in the name of C. Babbage.\nIt goes to: the"
    )
    assert "\n\nWhat is to be said:\n  - strengths: notes, rigour\n  - grade: 1.0\n\nDear" in prompt
    assert prompt.endswith("I write about Ada. ")


def test_linux_terminal() -> None:
    found, desk = run(load("linux_terminal").main, ["ls\n", "pwd\n"], answer=last_line)
    assert found == 2 * ["<The screen shows: >"]
    assert all(
        "{like\nthis}. Do not show what is in such brackets, nor the brackets { and }." in p
        for p in desk.prompts
    )
    assert desk.decodes[0].stop == ("$ ",)
    assert [re.search("My command is: (.*)", prompt)[1] for prompt in desk.prompts] == ["ls", "pwd"]  # type: ignore[index]


def test_question_answering() -> None:
    found, desk = run(load("question_answering").main, ["a?", "b?"], answer=lambda p: p.splitlines()[1])
    assert found == ["Question: a?", "Question: b?"]
    assert all(prompt.endswith("\nAnswer: ") for prompt in desk.prompts)


def test_simple_codegen() -> None:
    found, desk = run(load("simple_codegen").main, "x", answer=lambda _: "def x(): pass")
    assert found == "def x(): pass"
    assert desk.prompts[0].startswith("!!! Role\n")
    assert "\n      def example() -> None:\n          pass\n" in desk.prompts[0]


@in_virtual_time
async def test_play_writing() -> None:
    desk = Desk(lambda prompt: prompt.splitlines()[0].split()[3].strip("."))
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        found = await load("play_writing").main("T", "E")
    assert found == {"synopsis": "playwright", "review": "critic", "post": "social"}
    assert "Synopsis: playwright\nReview: critic\nPost: " in desk.prompts[-1]
    assert {decode.ignore_eos for decode in desk.decodes} == {False, True}


def test_game_development() -> None:
    def answer(prompt: str) -> str:
        if "architect" in prompt:
            return f"file{prompt.count('file') - 1}.py"
        if "comments ask" in prompt:
            return "new " + prompt.split("of the file ")[1][0]
        return (
            "more tests" if "review code" in prompt else "old " + prompt.split("this one: ")[1].split(".")[0]
        )

    found, desk = run(load("game_development").main, "a snake game", answer=answer)
    assert found == ["new A", "new B", "new C"]
    assert len(desk.prompts) == 10
    revisions = desk.prompts[-3:]
    shared = "Codebase:\nold file1\n\nold file2\n\nold file3\n\nReview comments: more tests\n\nYou are the "
    assert all(prompt.startswith(shared) for prompt in revisions)


def test_summary_chain() -> None:
    example = load("summary_chain")
    text = "a" * example.PART_CHARS + "b" * example.PART_CHARS + "c"
    found, desk = run(example.main, text, 9, answer=lambda prompt: f"s{prompt.count('s')}")
    parts = [prompt.split("part: ")[-1].split("Text: ")[-1][0] for prompt in desk.prompts]
    assert parts == ["a", "b", "c"]
    assert all("at most 9 words" in prompt for prompt in desk.prompts)
    assert found.startswith("s")
    assert f"Summary so far: {'s'}" in desk.prompts[2]


@in_virtual_time
async def test_summary_map_reduce() -> None:
    example = load("summary_map_reduce")
    desk = Desk(lambda prompt: "all" if "Combine" in prompt else prompt.split("Text: ")[1][0].upper())
    async with Runtime([desk_llm(desk, in_thread=False)]) as runtime, P.Client(runtime):
        found = await example.main("x" * example.PART_CHARS + "y" * 5)
        num_plans = len(runtime.plan_cache._plans)
    assert found == (["X", "Y"], "all")
    assert "of all of it.\nX\n\nY\nSummary: " in desk.prompts[-1]
    assert num_plans == 1, "one graph, one trip"


def test_role_play() -> None:
    example = load("role_play")
    found, desk = run(example.main, answer=lambda prompt: prompt.partition("Aye.")[2].strip() or "Aye.")
    assert found == [("Aye.", question) for question in example.QUESTIONS]
    assert len(desk.prompts) == 20
    assert len({prompt for prompt in desk.prompts if "Aye." not in prompt}) == 1


def test_chatbot() -> None:
    example = load("chatbot")
    found, desk = run(example.main, ["Hi", "Bye"], answer=lambda prompt: str(len(prompt.splitlines())))
    assert found == ["3", "5"]
    assert desk.prompts[1] == f"{example.BEGINNING}\nHuman: Hi\nAssistant: 3\nHuman: Bye\nAssistant: "


def test_every_program_has_a_test() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert len(names) == 13
    assert {f"test_{name}" for name in names} <= globals().keys()
