"""One call for each line that a user types, after a long constant beginning with single braces in it.

printf "Luc, who is 19, lives in Paris.\nKim from York is 55.\n" | python examples/parrot/sentences_as_json.py
"""

import sys
from collections.abc import Iterable, Iterator

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction
def as_json(sentence: P.SemanticVariable, line: P.Output = P.Output(max_tokens=40, stop=["\n"])) -> None:
    """{{system:}}You write sentences as JSON, with the keys {name}, {age} and {city}, and nothing else.
    {{user:}}Maria from Madrid is 31 years old.{{assistant:}}{"name": "Maria", "age": 31, "city": "Madrid"}
    {{user:}}Tom, who is 8, lives in York.{{assistant:}}{"name": "Tom", "age": 8, "city": "York"}
    {{user:}}{{sentence}}{{assistant:}}{{line}}"""


def main(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in sentences:
        yield as_json(sentence.strip()).get(P.LATENCY)


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        for line in main(sys.stdin):
            print(line)
