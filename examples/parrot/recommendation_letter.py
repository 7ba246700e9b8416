"""One call with five inputs, one of which stands in the prompt before the others and again at its end.

python examples/parrot/recommendation_letter.py
"""

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction(max_tokens=120, repetition_penalty=1.2)
def write_letter(
    student: P.SemanticVariable,
    professor: P.SemanticVariable,
    school: P.SemanticVariable,
    strengths: P.SemanticVariable,
    grade: P.SemanticVariable,
) -> None:
    r"""Write a letter of recommendation for {{student}}, in the name of {{professor}}.
    It goes to: {{school}}

    What is to be said:
      - strengths: {{strengths}}
      - grade: {{grade}}

    Dear committee,
    I write about {{student}}. {{output:letter}}"""


def main() -> str:
    letter: str = write_letter(
        "Ada", professor="C. Babbage", school="the School of Engines", strengths="notes, rigour", grade=1.0
    ).get(P.LATENCY)
    return letter


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        print(main())
