"""Programs on semantic variables before a real server: typed outputs, samples, seeds, counts of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Literal

import httpx
from pydantic import BaseModel

from checks.real_servers.outcome import Outcome
from stretto import Runtime, programs
from stretto.engines import llm_engine, transforms_engine
from stretto.wire.metrics import read_samples
from stretto.wire.paths import ApiChoice

_APIS: tuple[ApiChoice, ...] = ("chat", "completions")
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


class Colour(Enum):
    """A type whose values have spaces and signs that mean something in regular expressions."""

    RED = "dark red"
    BLUE = "blue (light)"


class Paint(BaseModel):
    """A type small enough for a small model."""

    colour: Colour
    coats: Literal[1, 2]


@programs.SemanticFunction(max_tokens=8)
def judge(text: programs.SemanticVariable) -> Literal["good news", "bad news"]:  # type: ignore[empty-body]
    """Is this good news? {{text}} Answer good news or bad news: {{output:verdict}}"""


@programs.SemanticFunction(max_tokens=8)
def choose(text: programs.SemanticVariable) -> Colour:  # type: ignore[empty-body]
    """Which colour is it? {{text}} {{output:colour}}"""


@programs.SemanticFunction(max_tokens=96)
def describe(verdict: programs.SemanticVariable, colour: programs.SemanticVariable) -> Paint:  # type: ignore[empty-body]
    """Write the paint as JSON with colour and coats, after {{verdict}} and {{colour}}: {{output:paint}}"""


@programs.SemanticFunction(max_tokens=6, temperature=1.0)
def tell(text: programs.SemanticVariable) -> None:
    """Tell a story of {{text}}: {{output:story}}"""


def check_programs(server: str) -> Iterator[Outcome]:
    """Run a program with each API, and compare its counts of tokens with those of the server."""
    for api in _APIS:
        before = _counted(server)
        with (
            Runtime([llm_engine(server, api=api), transforms_engine()]) as runtime,
            programs.Client(runtime) as client,
        ):
            yield from _typed(f"program, {api}")
            yield from _sampled(f"program, {api}")
        used, told = client.usage, _counted(server)
        counts = (used.num_prompt_tokens, used.num_output_tokens)
        server_counts = tuple(after - first for after, first in zip(told, before, strict=True))
        yield Outcome(f"program, {api}, usage", counts == server_counts, f"{counts}, server {server_counts}")


def _typed(name: str) -> Iterator[Outcome]:
    verdict, colour = judge("Our ship has come home."), choose("The sky at noon.")
    paint = describe(verdict, colour)
    values = (verdict.get(), colour.get(), paint.get())
    is_right = (
        values[0] in ("good news", "bad news")
        and isinstance(values[1], Colour)
        and isinstance(values[2], Paint)
    )
    yield Outcome(f"{name}, typed outputs", is_right, repr(values))


def _sampled(name: str) -> Iterator[Outcome]:
    """Compare samples: of one call, of a seed twice, of equal calls without a seed."""
    samples = tell.using(n=3)("a ship").get()
    seeded = [tell.using(seed=7)("a whale").get() for _ in range(2)]
    free = [one.get() for one in [tell("an island") for _ in range(4)]]
    is_right = isinstance(samples, list) and len(set(samples)) > 1 and len(set(free)) > 1
    yield Outcome(f"{name}, samples differ", is_right, f"{samples} {free}")
    yield Outcome(f"{name}, a seed is kept", seeded[0] == seeded[1], repr(seeded))


def _counted(server: str) -> tuple[int, ...]:
    """Return the tokens of prompts and answers that the server has counted so far."""
    text = httpx.get(f"{server}/metrics").text
    return tuple(round(sum(one.value for one in read_samples(text, (name,)))) for name in _TOKENS)
