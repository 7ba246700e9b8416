"""A branch: answer from the first text, let the LLM judge that answer, and read the second only if it must.

python examples/condition.py "Where did the captain live?" "The captain lived at the inn." "It was cold."
"""

import asyncio
import sys

from stretto import ABSENT, Input, Runtime, Template
from stretto.components import Condition, FirstPresent, LLMCall
from stretto.engines import llm_engine

question, first, second = (Input(name, "text") for name in ("question", "first", "second"))

draft = LLMCall(name="draft", prompt="answer_shortly", max_tokens=24, question=question, context=first)
verdict = LLMCall(name="verdict", prompt="judge", question=question, text=draft["text"], max_tokens=4)
good = Condition(name="good", value=verdict["text"], equals="yes")
better = LLMCall(
    name="better", prompt="refine", question=question, context=second, draft=draft["text"], when=good["no"]
)
answer = FirstPresent(better=better["text"], draft=draft["text"])
app = Template(
    "second_look",
    draft >> verdict >> good >> better >> answer,
    outputs={"answer": answer["value"], "better": better["text"]},
)


async def main(asked: str, one: str, other: str) -> None:
    async with Runtime([llm_engine(None)]) as runtime:
        outputs = await runtime.run(app, {"question": asked, "first": one, "second": other})
        read = "the first text" if outputs["better"] is ABSENT else "both texts"
        print(f"{outputs['answer']} (read {read})")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
