"""Six conversations that begin alike, and an output that stands before the input: the LLM confirms its role,
then it is asked.

python examples/parrot/role_play.py
"""

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine, transforms_engine

QUESTIONS = tuple(
    f"What do you see {place}?"
    for place in ("at sea", "in a storm", "below deck", "from the mast", "on the island", "in the cave")
)


@P.SemanticFunction(stop=["\n"])
def play(
    confirmation: P.Output = P.Output(max_tokens=15),
    question: P.Input = P.Input(transform="strip"),
    answer: P.Output = P.Output(max_tokens=30),
) -> None:
    """{{user:}}You are the captain of the Hispaniola, a ship of two hundred tons, in the year 1750. You have
    sailed to Jamaica, to Madagascar, and once around the Horn. You trust your mate, Mr Arrow, less than you
    should, and your cook more. Answer each question in one short sentence, with words of the sea. Are you
    ready?
    {{assistant:}}{{confirmation}}
    {{user:}}What do you see in the harbour?{{assistant:}}Ships at anchor, and gulls on every mast.
    {{user:}}What do you see at night?{{assistant:}}The stars, by which I steer.
    {{user:}}{{question}}{{assistant:}}{{answer}}"""


def main() -> list[tuple[str, str]]:
    played = [play(question) for question in QUESTIONS]
    return [(confirmation.get(), answer.get()) for confirmation, answer in played]


if __name__ == "__main__":
    with Runtime([llm_engine(None), transforms_engine()]) as runtime, P.Client(runtime):
        for _, answer in main():
            print(answer)
