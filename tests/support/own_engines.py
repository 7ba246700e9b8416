"""Two engines that somebody might add: one class each, which keeps its contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.tasks import Decode, LLMTask, Task


@dataclass(frozen=True)
class Loud:
    """A value of a type that Stretto does not have."""

    text: str


@dataclass(frozen=True, slots=True)
class ShoutingConfig:
    mark: str = "!"


class Shouting:
    """A `BatchEngine` for the op `shout`: text to a loud one."""

    op_names: Sequence[str] = ()

    def __init__(self, config: ShoutingConfig) -> None:
        self._mark = config.mark

    def run(self, tasks: Sequence[Task]) -> list[object]:
        return answer_batch(tasks, {"shout": self._shout})

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...

    def _shout(self, applications: Sequence[OpApplication]) -> list[object]:
        return [Loud(one.require("texts", str).upper() + self._mark) for one in applications]


@dataclass(frozen=True, slots=True)
class BackwardsConfig:
    max_running: int = 16


class Backwards(ScriptedLLM):
    """A `SteppedLLM` that says the words of its prompt from the last one on."""

    def __init__(self, config: BackwardsConfig) -> None:
        super().__init__(_backwards, config.max_running)


def _backwards(task: LLMTask, decode: Decode) -> str:
    words = " ".join(segment.text for segment in task.prompt).split()[::-1]
    if decode.items is None:
        return " ".join(words)
    return '["' + '", "'.join(word.strip('\\":?.') for word in words[:3]) + '"]'
