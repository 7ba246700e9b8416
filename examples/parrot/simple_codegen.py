"""One call that writes code; the prompt's line breaks, marks and indentation reach the LLM as they are.

python examples/parrot/simple_codegen.py "the sum of the list xs"
"""

import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction
def write_code(task: P.SemanticVariable, code: P.Output = P.Output(max_tokens=40, stop=["\n"])) -> None:
    """
    {{system:}}!!! Rules
    - Write one expression of Python:
          len(xs)
    - Write nothing but code.
    {{user:}}Write an expression for the product of a and b.{{assistant:}}a * b
    {{user:}}Write an expression for the length of the list xs.{{assistant:}}len(xs)
    {{user:}}Write an expression for {{input:task}}.{{assistant:}}{{output:code}}"""


def main(task: str) -> str:
    code: str = write_code(task=task).get(perf=P.LATENCY)
    return code


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print(main(sys.argv[1]))
