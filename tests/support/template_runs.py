"""Runs templates in virtual time, with a scripted LLM and Python functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Template
from stretto.apps.vocabulary import DEFAULT
from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.engines.scripted.engine import AnswerFunction, ScriptedLLM
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.sched.actions import Emit
from stretto.sched.vocabulary import Vocabulary
from stretto.sim.driver import VirtualDriver

LLM = Profile(base_s=0.001, per_unit_s=0.001, per_output_s=0.02)


def variables(task: LLMTask) -> dict[str, str]:
    """Return the variables of a task's prompt, by name."""
    return {segment.name: segment.text for segment in task.prompt if segment.name}


def text_of(task: LLMTask) -> str:
    """Return the whole text of a task's prompt."""
    return "".join(segment.text for segment in task.prompt)


def echo(task: LLMTask, decode: Decode) -> str:
    """Answer with the variables of the prompt in angle brackets."""
    return " ".join(f"<{value}>" for value in variables(task).values())


class TemplateRun:
    """One query of a template: its outputs or its error, and what happened on the way."""

    def __init__(
        self,
        template: Template,
        inputs: Mapping[str, object],
        *,
        answer: AnswerFunction = echo,
        functions: Mapping[str, Callable[..., object]] | None = None,
        passes: tuple[str, ...] = tuple(DEFAULT.passes),
        vocabulary: Vocabulary = DEFAULT,
        engines: tuple[Deployment, ...] = (),
    ) -> None:
        llm = deploy(
            "llm",
            lambda config: ScriptedLLM(answer, max_running=8),
            contract="llm",
            profile=LLM,
            keeps_state=True,
        )
        calls = deploy("calls", Calls, CallsConfig(functions or {}), profile=Profile(base_s=0.01))
        deployments = [llm, calls, *engines]
        plans = PlanCache({engine.name: engine.profile for engine in deployments}, vocabulary)
        self.driver = VirtualDriver(deployments, expand=plans.expand, check=True)
        plan = plans.plan(template, {}, passes)
        self.driver.submit("q", plan, inputs, passes=passes)
        reply = self.driver.run()["q"]
        self.error = reply.error
        self.outputs: Mapping[str, Any] = reply.outputs or {}
        assert self.driver.system.is_idle()

    @property
    def streamed(self) -> dict[str, str]:
        """The text of each output that was shown before the end."""
        shown: dict[str, str] = {}
        for _, action in self.driver.actions:
            if isinstance(action, Emit):
                shown[action.output] = shown.get(action.output, "") + action.text
        return shown

    def spans(self, engine: str) -> list[tuple[float, float]]:
        """Return when each piece of work of an engine began and ended."""
        found = []
        for span in self.driver.recorder.spans:
            if span.engine == engine:
                assert span.end_s is not None
                found.append((span.start_s, span.end_s))
        return found
