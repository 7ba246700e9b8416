"""A chain of calls: each one asks about the answer of the one before. The program waits once.

python examples/parrot/chain.py "the Eiffel Tower"
"""

import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction(max_tokens=12, stop=["\n"])
def answer(question: P.SemanticVariable) -> None:
    """{{user:}}In which city is Big Ben?{{assistant:}}London
    {{user:}}Which country is Madrid the capital of?{{assistant:}}Spain
    {{user:}}Which language do people speak in Italy?{{assistant:}}Italian
    {{user:}}{{question}}{{assistant:}}{{output:answer}}"""


def main(sight: str) -> list[str]:
    city = answer(f"In which city is {sight}?")
    country = answer(P.join("Which country is ", city, " the capital of?", separator=""))
    language = answer(P.join("Which language do people speak in ", country, "?", separator=""))
    found: list[str] = P.gather(city, country, language).get(P.LATENCY)
    return found


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print(*main(sys.argv[1]), sep="\n")
