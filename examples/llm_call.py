"""An LLM call with variables of your own: one question to each of several texts, side by side.

python examples/llm_call.py "Where did the captain live?" "The captain lived at the inn." \\
    "The captain lived on his ship."

The prompt is a ready-made one, for small LLMs. Any text with {question} and {context} in it may stand there.
"""

import asyncio
import sys

from stretto import Input, Runtime, Template
from stretto.components import LLMCall
from stretto.engines import llm_engine

question, texts = Input("question", "text"), Input("texts", "list[text]")

answering = LLMCall(prompt="answer_shortly", question=question, context=texts, each="context", max_tokens=24)
app = Template("ask_each", answering, outputs={"answers": answering["text"]})


async def main(asked: str, given: list[str]) -> None:
    async with Runtime([llm_engine(None)]) as runtime:
        outputs = await runtime.run(app, {"question": asked, "texts": given})
        for text, answer in zip(given, outputs["answers"], strict=True):
            print(f"{text!r}: {answer}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
