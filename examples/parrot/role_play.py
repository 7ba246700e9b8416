"""Ten conversations that begin alike, and an output that stands before the input: the LLM confirms its role,
then it is asked.

python examples/parrot/role_play.py
"""

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine, transforms_engine

QUESTIONS = tuple(
    f"What do you see {place}?"
    for place in (
        "in the harbour", "at sea", "below deck", "from the mast", "on the island", "in the cave", "at night",
        "in a storm", "in your sea chest", "through your glass",
    )
)  # fmt: skip


@P.SemanticFunction(repetition_penalty=1.2, stop=["\n"])
def play(
    confirmation: P.Output = P.Output(max_tokens=15),
    question: P.Input = P.Input(transform="strip"),
    answer: P.Output = P.Output(max_tokens=40),
) -> None:
    """{{user:}}From now on you play the captain of a ship in the year 1750. You know nothing that a captain
    of that time would not know, and you speak as he would: in short sentences, with words of the sea. You
    never say that you are a machine, and you never leave your role. If somebody asks for something that is
    not of your time, you do not understand the word, and you say so. Your ship is the Hispaniola, of two
    hundred tons, and she lies in Bristol. You have sailed to Jamaica, to Madagascar, and once around the
    Horn. You trust your mate, Mr Arrow, less than you should, and your cook more. Confirm in one sentence
    that you are ready.
    {{assistant:}}{{confirmation}}{{user:}}{{question}}{{assistant:}}{{answer}}"""


def main() -> list[tuple[str, str]]:
    played = [play(question) for question in QUESTIONS]
    return [(confirmation.get(), answer.get()) for confirmation, answer in played]


if __name__ == "__main__":
    with Runtime([llm_engine(None), transforms_engine()]) as runtime, P.Client(runtime):
        for _, answer in main():
            print(answer)
