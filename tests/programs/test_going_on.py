"""A prompt with several outputs goes on from each of them as it was generated: generate, fill, generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.programs import Desk, desk_llm
from support.virtual_loop import in_virtual_time

from stretto import Runtime, deploy
from stretto import programs as P
from stretto.engines.transformer.running_task import as_written
from stretto.model.profile import Profile
from stretto.model.tasks import Done, LLMTask
from stretto.model.values import Segment
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

pytest_plugins = ("support.llm_fixtures",)


class Watch(Observer):
    """The requests that generate, and their ends, in order."""

    def __init__(self) -> None:
        self.tasks: list[LLMTask] = []
        self.ends: list[Done] = []

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit) and action.task.decode is not None:
            self.tasks.append(action.task)

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case LLMReport(event=Done(value=str()) as done):
                self.ends.append(done)


@P.SemanticFunction(max_tokens=9)
def thrice(
    topic: P.SemanticVariable,
    one: P.Output = P.Output(transform="split"),
    two: P.Output = P.Output(stop=("e",)),
) -> None:
    """A long enough beginning, of more than a few blocks of tokens, about {{topic}}: {{one}}
    And then, of the same and more: {{two}}.
    At last: {{output:three}}"""


@P.SemanticFunction(max_tokens=9, conversation=P.CHAT)
def chat(topic: P.SemanticVariable) -> None:
    """Speak of {{topic}}. {{output:one}} Now of something else. {{output:two}} And now? {{output:three}}"""


def run(
    folder: Path, function: P.Function, engine: str, passes: str, *, is_mapped: bool = False
) -> tuple[list[object], Watch]:
    from benchmarks.common.reference.engine import ReferenceConfig, ReferenceLLM
    from stretto.engines.catalogue import transforms_engine
    from stretto.engines.transformer.engine import TransformerLLM
    from stretto.engines.transformer.engine_config import TransformerConfig

    made = {
        "transformer": (TransformerLLM, TransformerConfig(folder)),
        "reference": (ReferenceLLM, ReferenceConfig(folder)),
    }
    executable, config = made[engine]
    llm = deploy("llm", executable, config, contract="llm", keeps_state=True, profile=Profile())
    watch = Watch()
    engines = [llm, transforms_engine()]
    with Runtime(engines, observers=[watch]) as runtime, P.Client(runtime, passes=passes):
        found = function.map(P.gather("fugues", "rivers")) if is_mapped else function("fugues")
        return [one.get() for one in found], watch


def generated(watch: Watch) -> list[Segment]:
    """The parts of the last prompt that were generated."""
    return [segment for segment in watch.tasks[-1].prompt if segment.tokens is not None]


@pytest.mark.parametrize("engine", ["transformer", "reference"])
def test_a_prompt_goes_on_from_the_tokens_as_they_were_generated(tiny_checkpoint: Path, engine: str) -> None:
    values, watch = run(tiny_checkpoint, thrice, engine, "none")
    told = [done.written for done in watch.ends[:2]]
    assert generated(watch) == told
    assert all(one is not None and one.tokens is not None and one.tokens.ids for one in told)
    assert values[1] == told[1].text.strip()  # type: ignore[union-attr]


@pytest.mark.parametrize("function", [thrice, chat])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_outputs_are_equal_with_and_without_passes(
    tiny_checkpoint: Path, function: P.Function, is_mapped: bool
) -> None:
    plain, _ = run(tiny_checkpoint, function, "transformer", "none", is_mapped=is_mapped)
    assert run(tiny_checkpoint, function, "transformer", "all", is_mapped=is_mapped)[0] == plain


@P.SemanticFunction(max_tokens=9)
def twice(topic: P.SemanticVariable) -> None:
    """A long enough beginning, of more than a few blocks of tokens, about {{topic}}: {{output:one}}
    And then, of the same and more: {{output:two}}. At last: {{output:three}}"""


@pytest.mark.parametrize("engine", ["transformer", "reference"])
@pytest.mark.parametrize("function", [twice, chat])
def test_no_token_is_computed_twice(
    tiny_checkpoint: Path, tiny_chat_checkpoint: Path, function: P.Function, engine: str
) -> None:
    """The last token of an output is computed with what follows it."""
    _, watch = run(tiny_chat_checkpoint if function is chat else tiny_checkpoint, function, engine, "none")
    usages = [done.usage for done in watch.ends]
    assert len(usages) == 3
    num_computed = sum(
        one.num_prompt_tokens - one.num_cached_tokens + one.num_output_tokens - 1 for one in usages
    )
    assert num_computed == usages[-1].num_prompt_tokens + usages[-1].num_output_tokens - 1


def test_a_token_belongs_to_a_text_as_a_whole_or_not_at_all() -> None:
    """A stop string that begins within the third token leaves that token's beginning without tokens."""
    written = as_written("Hello wor", "t", [5, 6, 7, 8], [3, 5, 12, 13])
    assert written.tokens is not None
    assert (written.tokens.ids, written.tokens.num_chars) == ((5, 6), 5)
    halves = as_written("né", "t", [5, 6, 7, 8], [1, 1, 2, 2])
    assert halves.tokens is not None
    assert (halves.tokens.ids, halves.tokens.num_chars) == ((5, 6, 7), 2)


# --- any program, with an LLM that writes white space


def answer(prompt: str) -> str:
    digest = blake2b(prompt.encode(), digest_size=2).hexdigest()
    return f" {digest[:2]} STOP {digest[2:]}" if digest[0] in "0123" else f"\n {digest}"


def raw(prompt: str) -> str:
    """What stands for an output in its own prompt."""
    return answer(prompt).partition(" STOP")[0]


@P.SemanticFunction(stop=(" STOP",))
def chain(a: P.SemanticVariable, b: P.SemanticVariable) -> None:
    """{{output:x}}{{a}}|{{output:y}}|{{b}} {{input:x}}|{{output:z}}"""


def chained(a: str, b: str) -> list[str]:
    x = raw("")
    y = raw(f"{x}{a}|")
    z = raw(f"{x}{a}|{y}|{b} {x.strip()}|")
    return [x.strip(), y.strip(), z.strip()]


@dataclass(frozen=True)
class Step:
    reads: tuple[int, int]
    is_late: bool


STEPS = st.lists(
    st.builds(Step, st.tuples(st.integers(0, 30), st.integers(0, 30)), st.booleans()), min_size=1, max_size=4
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.sampled_from(["all", "none", "weighed"]))
def test_programs_see_outputs_as_they_were_generated(steps: Sequence[Step], passes: str) -> None:
    @in_virtual_time
    async def found() -> list[object]:
        async with (
            Runtime([desk_llm(Desk(answer), in_thread=False)]) as runtime,
            P.Client(runtime, passes=passes),
        ):
            values = [P.SemanticVariable("p"), P.SemanticVariable("q")]
            late: list[P.SemanticVariable] = []
            for step in steps:
                a, b = (values[place % len(values)] for place in step.reads)
                if step.is_late:
                    late.append(P.SemanticVariable())
                    b = late[-1]
                values += chain(a, b)
            for one in late:
                one.set("late")
            return [await one for one in values[2:]]

    values = ["p", "q"]
    for step in steps:
        a, b = (values[place % len(values)] for place in step.reads)
        values += chained(a, "late" if step.is_late else b)
    assert found() == values[2:]
