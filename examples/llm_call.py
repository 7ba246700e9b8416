"""An LLM call with variables of your own: one question to each of several texts, side by side.

python examples/llm_call.py "Where did the captain live?" "The captain lived at the inn." "It was a cold day."

The prompt is an example; write your own in its place.
"""

import asyncio
import sys

from stretto import Input, Runtime, Template
from stretto.components import LLMCall
from stretto.engines import llm_engine

question, texts = Input("question", "text"), Input("texts", "list[text]")

PROMPT = """Answer the question from the context. If the context does not answer it, say so.
Question: {question}
Context: {context}
Answer:"""

answering = LLMCall(prompt=PROMPT, question=question, context=texts, each="context", max_tokens=64)
app = Template("ask_each", answering, outputs={"answers": answering["text"]})


async def main(asked: str, given: list[str]) -> None:
    async with Runtime([llm_engine(None)]) as runtime:
        outputs = await runtime.run(app, {"question": asked, "texts": given})
        for text, answer in zip(given, outputs["answers"], strict=True):
            print(f"{text!r}: {answer}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
