"""A conversation that grows: each prompt is the last one, its answer and what the user says next.

printf "Hello!\nHow are you?\n" | python examples/parrot/chatbot.py
"""

import sys
from collections.abc import Iterable, Iterator

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine

BEGINNING = "This is a conversation between Human and Assistant, who is kind and brief."


@P.SemanticFunction
def reply(
    conversation: P.SemanticVariable,
    message: P.SemanticVariable,
    said: P.Output = P.Output(max_tokens=50, temperature=0.5, stop=["Human:"]),
) -> None:
    """{{conversation}}
    Human: {{message}}
    Assistant: {{said}}"""


def main(messages: Iterable[str]) -> Iterator[str]:
    conversation = P.SemanticVariable(BEGINNING)
    for message in messages:
        said = reply(conversation, message.strip())
        conversation = P.join(
            conversation, P.join("Human: ", message.strip(), separator=""),
            P.join("Assistant: ", said, separator=""), separator="\n",
        )  # fmt: skip
        yield said.get(P.LATENCY)


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        for said in main(sys.stdin):
            print(said)
