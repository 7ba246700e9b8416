"""A call of an LLM whose output goes to a Python function of the client.

python examples/parrot/fact_with_title.py "a volcano"
"""

import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction(conversation=P.CHAT, max_tokens=60, stop=["\n"])
def explain(topic: P.SemanticVariable) -> None:
    """Explain in one short sentence what {{topic}} is. {{output:text}}"""


@P.NativeFunction
def framed(text: str, title: str) -> str:
    """Return a text under its title."""
    return f"{title}\n{'-' * len(title)}\n{text}"


def main(topic: str) -> str:
    said: str = framed(explain(topic), title=topic.capitalize()).get()
    return said


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print(main(sys.argv[1]))
