"""The program of the paper's Figure 7: one function writes code, and another one a test of it.

Source: Parrot §4.1.
"""

from __future__ import annotations

from stretto import programs as P  # noqa: N812
from stretto.programs import LATENCY

PROMPTS = [
    "You are an expert software engineer.\nWrite python code of a snake game.\nCode: ",
    "You are an experienced QA engineer.\nYou write test code for a snake game.\nCode: run().\n"
    "Your test code: ",
]
"""Prompts of the program's two calls."""


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


def written(prompt: str) -> str:
    """Answer as an engineer, or as one of quality assurance."""
    return "assert run()" if "QA" in prompt else "run()"
