"""Six conversations side by side, each with two outputs in one prompt: a joke, then its explanation.

python examples/parrot/explained_jokes.py
"""

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine

TOPICS = ("a student", "a cat", "an engineer", "a computer", "the weather", "a pianist")


@P.SemanticFunction(conversation=P.CHAT, max_tokens=48, repetition_penalty=1.2)
def tell(
    topic: P.SemanticVariable,
    joke: P.Output = P.Output(temperature=0.5),
    explanation: P.Output = P.Output(),
) -> None:
    """Tell me a joke about {{topic}}. {{joke}}
    Good, then explain that joke. {{explanation}}"""


def main() -> list[tuple[str, str]]:
    told = [tell(topic) for topic in TOPICS]
    return [(joke.get(), explanation.get()) for joke, explanation in told]


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        for joke, explanation in main():
            print(f"{joke}\n  ({explanation})")
