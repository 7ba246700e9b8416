"""A diamond of calls in asynchronous code: a synopsis, its review, and a post that reads both.

python examples/parrot/play_writing.py "Tragedy at sunset on the beach" "Victorian England"
"""

import asyncio
import sys

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction(max_tokens=120, ignore_eos=True, repetition_penalty=1.2)
def write_synopsis(title: P.SemanticVariable, era: P.SemanticVariable) -> None:
    """You are a playwright. Write a synopsis of the play with this title, set in this era.
    Title: {{title}}
    Era: {{era}}
    Synopsis: {{output:synopsis}}"""


@P.SemanticFunction(max_tokens=80, repetition_penalty=1.2)
def write_review(synopsis: P.SemanticVariable) -> None:
    """You are a critic of plays. Write a review of the play with this synopsis.
    Synopsis: {{synopsis}}
    Review: {{output:review}}"""


@P.SemanticFunction(max_tokens=80, repetition_penalty=1.2)
def write_post(synopsis: P.SemanticVariable, review: P.SemanticVariable) -> None:
    """You manage the social media of a theatre. Write a post about this play, with its date, 31 May.
    Synopsis: {{synopsis}}
    Review: {{review}}
    Post: {{output:post}}"""


async def main(title: str, era: str) -> dict[str, str]:
    synopsis = write_synopsis(title, era)
    review = write_review(synopsis)
    post = write_post(synopsis, review)
    return {"post": await post.aget(P.LATENCY), "review": await review, "synopsis": await synopsis.aget()}


async def show(title: str, era: str) -> None:
    async with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        for name, text in (await main(title, era)).items():
            print(f"{name}: {text}")


if __name__ == "__main__":
    asyncio.run(show(sys.argv[1], sys.argv[2]))
