"""An answer that one model judges and another refines until it is good enough, at most four times.

stretto plan examples/plans/refine.yaml --requests examples/plans/questions.jsonl --machine 4xA100-80G
"""

from typing import Any

from stretto import Component, Input, Template
from stretto.components import Condition, FirstPresent, LLMCall

ROUNDS = 4

question = Input("question", "text")
drafts = [LLMCall(name="draft", prompt="{question}", question=question, max_tokens=256, engine="writer")]
others: list[Component] = []
for number in range(1, ROUNDS + 1):
    draft = drafts[-1]["text"]
    verdict = LLMCall(
        name=f"verdict{number}",
        prompt="{question}\n\nAnswer: {draft}\n\nIs this answer good enough? Answer yes or no.",
        question=question,
        draft=draft,
        json_schema='{"enum": ["yes", "no"]}',
        max_tokens=8,
        engine="judge",
    )
    good = Condition(name=f"good{number}", value=verdict["text"], equals="yes")
    refined = LLMCall(
        name=f"refined{number}",
        prompt="{question}\n\nAnswer: {draft}\n\nThis answer is not good enough. Write a better one.",
        question=question,
        draft=draft,
        when=good["no"],
        max_tokens=256,
        engine="writer",
    )
    others += [verdict, good]
    drafts.append(refined)
options: dict[str, Any] = {one.name: one["text"] for one in reversed(drafts)}
answer = FirstPresent(**options)
app = Template("refine", [*drafts, *others, answer], {"answer": answer["value"]})
