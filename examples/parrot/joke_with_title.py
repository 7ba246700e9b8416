"""A call of an LLM whose output goes to a Python function of the client.

python examples/parrot/joke_with_title.py "a student"
"""

import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction
def tell(topic: P.SemanticVariable, joke: P.Output = P.Output(max_tokens=50, repetition_penalty=1.2)) -> None:
    """Tell me a joke about {{topic}}: {{joke}}"""


@P.NativeFunction
def framed(joke: str, title: str) -> str:
    """Return a joke under its title."""
    return f"{title}\n{'-' * len(title)}\n{joke}"


def main(topic: str) -> str:
    said: str = framed(tell(topic), title=f"On {topic}").get()
    return said


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print(main(sys.argv[1]))
