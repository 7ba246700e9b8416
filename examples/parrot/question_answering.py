"""A question, its answer, and the next question: each call waits for a person.

printf "What is the capital of France?\nHow many legs does a spider have?\n" |
    python examples/parrot/question_answering.py
"""

import sys
from collections.abc import Iterable, Iterator

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction(max_tokens=64)
def answer(question: P.SemanticVariable) -> None:
    """You answer questions briefly and truthfully. If you do not know an answer, say so.
    Question: {{question}}
    Answer: {{output:answer}}
    This is the end of the answer."""


def main(questions: Iterable[str]) -> Iterator[str]:
    for question in questions:
        yield answer(question.strip()).get(P.LATENCY)


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        for said in main(sys.stdin):
            print(said)
