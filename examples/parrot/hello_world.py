"""One call: repeat a text.

python examples/parrot/hello_world.py "Hello, world!"
"""

import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction(max_tokens=32)
def repeat(string: P.SemanticVariable) -> None:
    """Repeat this text word by word: {{input:string}}
    {{output:output}}"""


def main(text: str) -> str:
    said: str = repeat(text).get(perf=P.LATENCY)
    return said


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print(main(sys.argv[1]))
