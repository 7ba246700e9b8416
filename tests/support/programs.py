"""An LLM for programs on semantic variables, which answers with a function of the prompt's text."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import Deployment, deploy
from stretto.model.tasks import Decode, LLMTask
from support.runtime_engines import AtOnce

EXAMPLES = Path(__file__).parents[2] / "examples" / "parrot"


def load_example(name: str) -> ModuleType:
    """Return one of the example programs."""
    spec = importlib.util.spec_from_file_location(f"parrot_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Desk:
    """What the LLM has been asked, in order, and the function that answers."""

    answer: Callable[[str], str] = lambda prompt: f"<{prompt}>"
    tasks: list[LLMTask] = field(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        return [text_of(task) for task in self.tasks if task.decode is not None]

    @property
    def decodes(self) -> list[Decode]:
        return [task.decode for task in self.tasks if task.decode is not None]


class DeskLLM(ScriptedLLM):
    """Answers as its desk says."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(lambda task, _: desk.answer(text_of(task)), 16)
        self._desk = desk

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        self._desk.tasks.append(task)
        if task.decode is not None:  # its texts have no such token, and no tokens to be penalised
            task = replace(task, decode=replace(task.decode, ignore_eos=False, repetition_penalty=1.0))
        super().admit(task, rank)


def text_of(task: LLMTask) -> str:
    return "".join(segment.text for segment in task.prompt)


def desk_llm(desk: Desk, *, in_thread: bool = True) -> Deployment:
    if in_thread:
        return deploy("llm", DeskLLM, desk, contract="llm")
    return deploy("llm", lambda d: AtOnce(DeskLLM(d)), desk, contract="llm", runs_in="loop")
