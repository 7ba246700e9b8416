"""One call that writes code; the prompt's line breaks, marks and indentation reach the LLM as they are.

python examples/parrot/simple_codegen.py "the sum of two numbers"
"""

import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction
def write_code(task: P.SemanticVariable, code: P.Output = P.Output(max_tokens=160, stop=["!!!"])) -> None:
    """
    !!! Role
    You are an experienced engineer who writes Python code.

    !!! Rules
    - Write one function, with a docstring and type hints.
    - Indent by four spaces:
          def example() -> None:
              pass
    - Write nothing but code.

    !!! Task
    Write a function for {{input:task}}.

    !!! Code
    {{output:code}}"""


def main(task: str) -> str:
    code: str = write_code(task=task).get(perf=P.LATENCY)
    return code


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print(main(sys.argv[1]))
