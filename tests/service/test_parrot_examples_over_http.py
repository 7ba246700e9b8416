"""The programs of semantic variables give the same answers in process and at a service."""

from __future__ import annotations

import asyncio
import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
from support.programs import EXAMPLES, Desk, desk_llm, load_example
from support.services import served

from stretto import Runtime
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine

PROGRAMS: Mapping[str, Callable[[ModuleType], Any]] = {
    "capitals": lambda example: example.main(),
    "chain": lambda example: example.main("Big Ben"),
    "fact_with_title": lambda example: example.main("cats"),
    "hello_world": lambda example: example.main("Hello {{x}}!"),
    "question_answering": lambda example: example.main(["a?", "b?"]),
    "reviews": lambda example: example.main(["x", "y"]),
    "role_play": lambda example: example.main(),
    "sentences_as_json": lambda example: example.main(["Kim is 5.\n", "Luc is 6.\n"]),
    "simple_codegen": lambda example: example.main("x"),
}


def answer(prompt: str) -> str:
    """A text that depends on all of the prompt."""
    return f"{zlib.crc32(prompt.encode()):x}"


@pytest.fixture(scope="module")
def at_service() -> Iterator[tuple[Desk, str]]:
    desk = Desk(answer)
    with served([desk_llm(desk), transforms_engine()]) as (_, url):
        yield desk, url


@pytest.fixture(scope="module")
def in_process() -> Iterator[tuple[Desk, Runtime]]:
    desk = Desk(answer)
    with Runtime([desk_llm(desk), transforms_engine()]) as runtime:
        yield desk, runtime


def run(name: str, desk: Desk, where: Any) -> tuple[Any, list[str]]:
    """Return what a program returns, and what it asked the LLM, sorted."""
    desk.tasks.clear()
    program, example = PROGRAMS[name], load_example(name)
    if not inspect.iscoroutinefunction(example.main):
        with P.Client(where):
            found = program(example)
            found = list(found) if inspect.isgenerator(found) else found
        return found, sorted(desk.prompts)

    async def run_on_its_loop() -> Any:
        async with P.Client(where):
            return await program(example)

    if isinstance(where, Runtime):
        found = where.run_on_loop(run_on_its_loop)
    else:
        found = asyncio.run(run_on_its_loop())
    return found, sorted(desk.prompts)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same_at_a_service(
    name: str, at_service: tuple[Desk, str], in_process: tuple[Desk, Runtime]
) -> None:
    found = run(name, *at_service)
    assert found == run(name, *in_process)
    assert found[1]


def test_every_program_is_there() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROGRAMS)
