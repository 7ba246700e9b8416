"""Map and reduce as one graph: a sentence on each review is joined without a trip to the client.

python examples/parrot/reviews.py "The soup was cold and the waiter was rude. We left after ten minutes." \\
    "We waited for an hour, and then the kitchen was closed. The staff was angry with us."
"""

import asyncio
import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction(conversation=P.CHAT, max_tokens=40, stop=["\n"])
def summarise(review: P.SemanticVariable) -> None:
    """Summarise this text in one short sentence: {{review}} {{output:summary}}"""


@P.SemanticFunction(max_tokens=4, stop=["\n"])
def judge(summaries: P.SemanticVariable) -> None:
    """{{user:}}The rooms were clean.
    The staff was friendly.{{assistant:}}good
    {{user:}}The bread was old.
    Nobody said hello.{{assistant:}}bad
    {{user:}}{{summaries}}{{assistant:}}{{output:verdict}}"""


async def main(reviews: list[str]) -> tuple[list[str], str]:
    summaries = [summarise(review) for review in reviews]
    verdict = judge(P.join(*summaries, separator="\n"))
    last = await verdict.aget(P.LATENCY)
    return await asyncio.gather(*(one.aget() for one in summaries)), last


async def show(reviews: list[str]) -> None:
    async with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        summaries, verdict = await main(reviews)
        print(*(f"- {one}" for one in summaries), f"On the whole: {verdict}", sep="\n")


if __name__ == "__main__":
    asyncio.run(show(sys.argv[1:]))
