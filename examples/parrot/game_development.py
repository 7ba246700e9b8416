"""Several agents write a program: an architect names three files, three programmers write them side by side,
a reviewer reads all of them, and three revisions follow.

The prompts of the revisions begin alike, up to the name of the file, with code that other calls have written.

python examples/parrot/game_development.py "a snake game"
"""

import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction(max_tokens=24)
def design(task: P.SemanticVariable) -> None:
    """You are a software architect. Divide this task into three Python files: {{task}}.
    Write a line for each file: its name and what it does.
    1. {{output:first}}
    2. {{output:second}}
    3. {{output:third}}"""


@P.SemanticFunction(max_tokens=100, repetition_penalty=1.1)
def write_file(task: P.SemanticVariable, files: P.SemanticVariable, file: P.SemanticVariable) -> None:
    """You are an engineer in a team that develops {{task}} in these files:
    {{files}}

    Write all of this one: {{file}}
    {{output:code}}"""


@P.SemanticFunction(max_tokens=100, repetition_penalty=1.1)
def review(task: P.SemanticVariable, codebase: P.SemanticVariable) -> None:
    """You review code of {{task}}. The code:
    {{codebase}}

    What must be changed? {{output:comments}}"""


@P.SemanticFunction(max_tokens=100, repetition_penalty=1.1)
def revise(codebase: P.SemanticVariable, comments: P.SemanticVariable, file_name: str) -> None:
    """Codebase:
    {{codebase}}

    Review comments: {{comments}}

    You are the engineer of the file {{file_name}}. Write it again, as the comments ask:
    {{output:code}}"""


def main(task: str) -> list[str]:
    task_given = P.SemanticVariable(task)
    files = design(task_given)
    plan = P.join(*files, separator="\n")
    drafts = [write_file(task_given, plan, file) for file in files]
    codebase = P.join(*drafts)
    comments = review(task_given, codebase)
    revised: list[str] = P.gather(*(revise(codebase, comments, name) for name in "ABC")).get(P.LATENCY)
    return revised


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print("\n\n".join(main(sys.argv[1])))
