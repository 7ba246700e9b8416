"""A chain of calls: a summary is refined with one part of a document after the other. The program waits once.

python examples/parrot/summary_chain.py examples/documents/treasure-island-opening.txt
"""

import sys
from pathlib import Path

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine

PART_CHARS = 2000


@P.SemanticFunction
def begin(
    part: P.SemanticVariable,
    summary: P.Output = P.Output(max_tokens=60, repetition_penalty=1.2),
    word_limit: int = 40,
) -> None:
    """Summarise this text in at most {{word_limit}} words.
    Text: {{part}}
    Summary: {{summary}}"""


@P.SemanticFunction
def refine(
    part: P.SemanticVariable,
    earlier: P.SemanticVariable,
    summary: P.Output = P.Output(max_tokens=60, repetition_penalty=1.2),
    word_limit: int = 40,
) -> None:
    """Summary so far: {{earlier}}
    Next part: {{part}}
    Summarise all of this in at most {{word_limit}} words: {{summary}}"""


def main(text: str, word_limit: int) -> str:
    first, *rest = (text[place : place + PART_CHARS] for place in range(0, len(text), PART_CHARS))
    summary = begin(first, word_limit)
    for part in rest:
        summary = refine(part, summary, word_limit)
    last: str = summary.get(P.LATENCY)
    return last


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print(main(Path(sys.argv[1]).read_text("utf-8"), word_limit=40))
