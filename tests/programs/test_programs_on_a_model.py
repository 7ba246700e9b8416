"""Programs on a real model with random weights: equal with and without passes, and computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stretto import Runtime, deploy
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine
from stretto.model.profile import Profile
from stretto.model.tasks import Done, Usage
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

pytest_plugins = ("support.llm_fixtures",)


@P.SemanticFunction(max_tokens=12)
def told(topic: P.SemanticVariable) -> None:
    """A long enough beginning, of more than a few blocks of tokens, on the topic of {{topic}}, for a person
    who has never heard of it and wants to hear of it now, in simple words: {{output:story}}
    And its moral is: {{output:moral}}"""


Kind = Literal["music", "a fugue", "music of old"]


@P.SemanticFunction(max_tokens=6)
def sorted_as(
    topic: P.SemanticVariable,
    kind: Kind = P.Output(),  # type: ignore[assignment]
    why: P.SemanticVariable = P.Output(),  # type: ignore[assignment]
) -> None:
    """What is {{topic}}? {{kind}}, because {{why}}"""


class Counts(Observer):
    """The token counts of requests that have generated text."""

    def __init__(self) -> None:
        self.found: list[Usage] = []

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case LLMReport(event=Done(value=str(), usage=usage)):
                self.found.append(usage)


def run(folder: Path, passes: str) -> tuple[tuple[str, ...], Usage, Usage]:
    """Return all outputs, and the counts of their requests."""
    from stretto.engines.transformer.engine import TransformerLLM
    from stretto.engines.transformer.engine_config import TransformerConfig

    llm = deploy(
        "llm", TransformerLLM, TransformerConfig(folder), contract="llm", keeps_state=True, profile=Profile()
    )
    counts = Counts()
    with Runtime([llm, transforms_engine()], observers=[counts]) as runtime, P.Client(runtime, passes=passes):
        story, moral = told("fugues")
        texts = story.get(), moral.get()
        first, second = counts.found
        kinds, whys = zip(*(sorted_as(topic) for topic in ("fugues", "this")), strict=True)
        texts = *texts, *(one.get() for one in (*kinds, *whys))
    return texts, first, second


def test_outputs_of_one_prompt_are_equal_with_and_without_passes(tiny_checkpoint: Path) -> None:
    """The request for the second output finds the KV of all that came before the first one."""
    plain, first, second = run(tiny_checkpoint, "none")
    assert plain[0] != plain[1]
    assert second.num_cached_tokens >= first.num_prompt_tokens > 50
    assert run(tiny_checkpoint, "all")[0] == plain
