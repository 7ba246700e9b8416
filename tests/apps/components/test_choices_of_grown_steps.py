"""Retries, timeouts and fallback engines of a component hold for the steps that it becomes while it runs."""

from __future__ import annotations

from typing import Any

import pytest
from support.template_runs import LLM, TemplateRun, echo, variables

from stretto.apps.components.component import Input
from stretto.apps.template import Template
from stretto.components import Agent, MapReduce, Tool
from stretto.engines.catalogue import tools_engine
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.graph.strategy import Strategy
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import BadReply, EngineFailure
from stretto.model.tasks import Decode, LLMTask


def map_reduce(**choices: Any) -> Template:
    mapped = MapReduce(items=Input("texts", "list[text]"), fan_in=2, **choices)
    return Template("t", mapped, {"text": mapped["text"]})


class FailsOnce:
    """An LLM that fails at each prompt that combines texts when it first sees it."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, task: LLMTask, decode: Decode) -> str:
        (text,) = variables(task).values()
        if "\n\n" in text and text not in self.seen:
            self.seen.add(text)
            raise BadReply("not this time")
        return echo(task, decode)


def test_the_calls_that_combine_are_tried_again() -> None:
    texts = {"texts": ["a", "b", "c"]}
    run = TemplateRun(map_reduce(retries=1, backoff_s=3.0), texts, answer=FailsOnce())
    assert run.error is None
    assert run.outputs == {"text": "<<<a>\n\n<b>>\n\n<c>>"}
    assert run.driver.now_s > 6.0, "two levels, each with one backoff"
    assert isinstance(TemplateRun(map_reduce(), texts, answer=FailsOnce()).error, BadReply)


def backup() -> Deployment:
    """A second LLM, whose answers say so."""
    return deploy(
        "backup",
        lambda config: ScriptedLLM(lambda task, decode: "from the backup", max_running=8),
        contract="llm",
        profile=LLM,
    )


def test_every_turn_of_an_agent_has_the_fallbacks_of_its_engines() -> None:
    """The last step comes of an expansion within an expansion; only the LLM has a fallback."""

    def write(task: LLMTask, decode: Decode) -> str:
        if decode.items is None:
            raise EngineFailure("no answers here")
        return '["look: it"]' if len(variables(task)) < 3 else "[]"

    look = Tool("look", "a look at something", str.upper)
    agent = Agent(
        question=Input("question", "text"), tools=(look,), fallback="llm:backup", retries=1, backoff_s=0.0
    )
    app = Template("asking", agent, {"answer": agent["answer"]})
    engines = (tools_engine((look,)), backup())
    run = TemplateRun(app, {"question": "What is it?"}, answer=write, engines=engines)
    assert run.error is None
    assert run.outputs == {"answer": "from the backup"}


@pytest.mark.parametrize(("engine", "fallback"), [(None, "a:b,c:d"), ("a", "b"), ("c", "d"), ("e", None)])
def test_each_step_gets_the_fallback_of_its_own_engine(engine: str | None, fallback: str | None) -> None:
    whole = Strategy(timeout_s=2.0, retries=3, fallback="a:b,c:d")
    assert whole.passed_on(engine) == Strategy(timeout_s=2.0, retries=3, fallback=fallback)
