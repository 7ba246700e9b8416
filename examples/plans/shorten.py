"""An answer that an editor shortens until it fits, at most four times: Python decides when it does.

stretto plan examples/plans/shorten.yaml --requests examples/plans/questions.jsonl --machine 4xA100-80G
"""

from stretto import programs as P  # noqa: N812

MOST_CHARACTERS = 400


@P.SemanticFunction(engine="writer", max_tokens=256)
def draft(question: P.SemanticVariable) -> None:
    """Answer this question: {{input:question}} {{output:answer}}"""


@P.SemanticFunction(engine="editor", max_tokens=256)
def shorter(question: P.SemanticVariable, answer: P.SemanticVariable) -> None:
    """{{input:question}} Shorten this answer: {{input:answer}} {{output:answer_in_short}}"""


def fitting(question: P.SemanticVariable) -> dict[str, object]:
    answer = draft(question)
    num_rounds = 0
    while num_rounds < 4 and len(answer.get()) > MOST_CHARACTERS:
        answer = shorter(question, answer)
        num_rounds += 1
    return {"answer": answer, "rounds": num_rounds}
