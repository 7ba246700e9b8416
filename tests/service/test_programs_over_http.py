"""Programs run at a service as they do in process."""

from __future__ import annotations

from support.programs import Desk, desk_llm
from support.services import served

from stretto import programs as P
from stretto.engines.catalogue import transforms_engine
from stretto.programs import LATENCY


@P.SemanticFunction
def WritePythonCode(task: P.SemanticVariable) -> None:  # noqa: N802
    """You are an expert software engineer.
    Write python code of {{input:task}}.
    Code: {{output:code}}
    """


@P.SemanticFunction
def WriteTestCode(task: P.SemanticVariable, code: P.SemanticVariable) -> None:  # noqa: N802
    """You are an experienced QA engineer.
    You write test code for {{input:task}}.
    Code: {{input:code}}.
    Your test code: {{output:test}}
    """


def WriteSnakeGame() -> tuple[str, str]:  # noqa: N802
    task = P.SemanticVariable("a snake game")
    code = WritePythonCode(task)
    test = WriteTestCode(task, code)
    return code.get(perf=LATENCY), test.get(perf=LATENCY)


def test_figure_7_runs_over_http() -> None:
    desk = Desk(lambda prompt: "assert run()" if "QA" in prompt else "run()")
    with served([desk_llm(desk), transforms_engine()]) as (_, url), P.Client(url):
        assert WriteSnakeGame() == ("run()", "assert run()")
    assert desk.prompts == [
        "You are an expert software engineer.\nWrite python code of a snake game.\nCode: ",
        "You are an experienced QA engineer.\nYou write test code for a snake game.\nCode: run().\n"
        "Your test code: ",
    ]
