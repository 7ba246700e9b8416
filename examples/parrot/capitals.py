"""Six conversations side by side, each with two outputs in one prompt: a capital, then its language.

python examples/parrot/capitals.py
"""

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine

COUNTRIES = ("France", "Japan", "Egypt", "Germany", "Italy", "Norway")


@P.SemanticFunction(conversation=P.CHAT, max_tokens=24, stop=["\n"])
def tell(
    country: P.SemanticVariable,
    capital: P.Output = P.Output(),
    language: P.Output = P.Output(temperature=0.1),
) -> None:
    """What is the capital of {{country}}? {{capital}}
    And which language do people speak there? {{language}}"""


def main() -> list[tuple[str, str]]:
    told = [tell(country) for country in COUNTRIES]
    return [(capital.get(), language.get()) for capital, language in told]


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        for capital, language in main():
            print(f"{capital} {language}")
