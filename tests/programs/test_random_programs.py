"""Random programs give what their functions say, however their calls are cut into fragments, and whenever
their inputs come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.programs import Desk, desk_llm
from support.virtual_loop import in_virtual_time

from stretto import Runtime
from stretto import programs as P
from stretto.model.values import as_text


def answer(prompt: str) -> str:
    return blake2b(prompt.encode(), digest_size=2).hexdigest()


@P.SemanticFunction
def one(a: P.SemanticVariable, b: P.SemanticVariable) -> None:
    """One of {{a}} and {{b}}: {{output:x}}"""


@P.SemanticFunction
def two(a: P.SemanticVariable, b: P.SemanticVariable) -> None:
    """{{a}} is {{output:x}}, and {{b}} with {{input:x}}{{output:y}}"""


@dataclass(frozen=True)
class Step:
    """A call; it reads values by their places among inputs and earlier outputs."""

    kind: str
    reads: tuple[int, int]
    has_pause: bool


def evaluated(inputs: Sequence[str], steps: Sequence[Step]) -> list[object]:
    """The values of a program by its definition."""
    values: list[object] = list(inputs)
    for step in steps:
        a, b = (values[place] for place in step.reads)
        match step.kind:
            case "one":
                values.append(answer(f"One of {as_text(a)} and {as_text(b)}: "))
            case "two":
                x = answer(f"{as_text(a)} is ")
                y = answer(f"{as_text(a)} is {x}, and {as_text(b)} with {x}")
                values += [x, y]
            case "gather":
                values.append([item for one in (a, b) for item in (one if isinstance(one, list) else [one])])
            case "join":
                parts = [item for one in (a, b) for item in (one if isinstance(one, list) else [one])]
                values.append("+".join(map(as_text, parts)))
            case "map":
                items = a if isinstance(a, list) else [a]
                values.append([answer(f"One of {as_text(i)} and {as_text(b)}: ") for i in items])
    return values


async def called(inputs: Sequence[P.SemanticVariable], steps: Sequence[Step]) -> list[P.SemanticVariable]:
    variables = list(inputs)
    for step in steps:
        a, b = (variables[place] for place in step.reads)
        match step.kind:
            case "one":
                variables.append(one(a, b))
            case "two":
                variables += two(a, b)
            case "gather":
                variables.append(P.gather(a, b))
            case "join":
                variables.append(P.join(a, b, separator="+"))
            case "map":
                variables.append(one.map(P.gather(a), b))
        if step.has_pause:
            await asyncio.sleep(1)
    return variables


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    num_values, steps = 2, []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["one", "two", "gather", "join", "map"]))
        places = st.integers(0, num_values - 1)
        steps.append(Step(kind, (draw(places), draw(places)), draw(st.booleans())))
        num_values += 2 if kind == "two" else 1
    return steps


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    programs(),
    st.lists(st.integers(0, 4), min_size=2, max_size=2),
    st.sampled_from(["all", "none", "weighed"]),
)
def test_programs_give_what_their_functions_say(steps: list[Step], late_s: list[int], passes: str) -> None:
    """Input number n is set `late_s[n]` seconds after the program begins; 0 is at once."""

    @in_virtual_time
    async def run() -> list[object]:
        async def set_late(variable: P.SemanticVariable, value: str, seconds: int) -> None:
            await asyncio.sleep(seconds)
            variable.set(value)

        async with (
            Runtime([desk_llm(Desk(answer), in_thread=False)]) as runtime,
            P.Client(runtime, passes=passes),
        ):
            inputs = [
                P.SemanticVariable(v) if not s else P.SemanticVariable()
                for v, s in zip("pq", late_s, strict=True)
            ]
            waiting = [
                asyncio.create_task(set_late(one, v, s))
                for one, v, s in zip(inputs, "pq", late_s, strict=True)
                if s
            ]
            variables = await called(inputs, steps)
            found = [await one for one in variables]
            await asyncio.gather(*waiting)
            return found

    assert run() == evaluated("pq", steps)
