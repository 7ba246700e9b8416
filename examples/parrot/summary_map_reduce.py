"""Map and reduce as one graph: the summaries of parts are joined without a trip to the client.

python examples/parrot/summary_map_reduce.py examples/documents/treasure-island-opening.txt
"""

import asyncio
import sys
from pathlib import Path

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine

PART_CHARS = 2000


@P.SemanticFunction(max_tokens=40)
def summarise(part: P.SemanticVariable) -> None:
    """Summarise this text in one sentence.
    Text: {{part}}
    Summary: {{output:summary}}"""


@P.SemanticFunction(max_tokens=60)
def combine(summaries: P.SemanticVariable) -> None:
    """Combine these summaries of parts of one text into a summary of all of it.
    {{summaries}}
    Summary: {{output:summary}}"""


async def main(text: str) -> tuple[list[str], str]:
    parts = [text[place : place + PART_CHARS] for place in range(0, len(text), PART_CHARS)]
    summaries = [summarise(part) for part in parts]
    whole = combine(P.join(*summaries))
    last = await whole.aget(P.LATENCY)
    return await asyncio.gather(*(one.aget() for one in summaries)), last


async def show(path: Path) -> None:
    async with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        summaries, whole = await main(path.read_text("utf-8"))
        print(*(f"- {one}" for one in summaries), f"In short: {whole}", sep="\n")


if __name__ == "__main__":
    asyncio.run(show(Path(sys.argv[1])))
