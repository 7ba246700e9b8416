"""An engine that dies in the middle of a generation costs its calls a retry, and no more."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto import Runtime, deploy
from stretto import programs as P
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.tasks import LLMEvent, LLMTask, Piece


@dataclass
class Story:
    """What has happened to all instances."""

    prompts: list[str] = field(default_factory=list)
    has_died: bool = False


class Mortal(ScriptedLLM):
    """Answers in ten words. Its first instance dies after the fourth."""

    def __init__(self, story: Story) -> None:
        super().__init__(lambda task, _: " ".join("word" for _ in range(10)), 4)
        self._story = story
        self._num_pieces = 0

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        self._story.prompts.append("".join(segment.text for segment in task.prompt))
        super().admit(task, rank)

    def step(self) -> list[LLMEvent]:
        events = super().step()
        self._num_pieces += sum(isinstance(event, Piece) for event in events)
        if self._num_pieces >= 4 and not self._story.has_died:
            self._story.has_died = True
            raise RuntimeError("killed")
        return events


@P.SemanticFunction
def told(x: P.SemanticVariable) -> None:
    """Tell {{x}}: {{output:y}}, and then: {{output:z}}"""


def test_an_engine_that_dies_in_mid_generation_costs_a_retry() -> None:
    story = Story()
    llm = deploy("llm", Mortal, story, contract="llm", keeps_state=True)
    with Runtime([llm]) as runtime, P.Client(runtime, passes="none"):
        y, z = told("this")
        said = " ".join(["word"] * 10)
        assert (y.get(timeout_s=60), z.get(timeout_s=60)) == (said, said)
    assert story.has_died
    assert story.prompts == ["Tell this: "] * 2 + [f"Tell this: {said}, and then: "]
