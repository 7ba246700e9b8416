"""A branch: answer from the first text if it speaks of what is asked, else from the second.

python examples/condition.py "Where did the captain live?" "It was cold." "The captain lived at the inn."

The default LLM is too small to judge, so a Python function does it. With a larger one, an `LLMCall` may take
the place of the function: the page on apps shows it (docs/apps.md).
"""

import asyncio
import re
import sys

from stretto import ABSENT, Input, Runtime, Template
from stretto.components import Condition, FirstPresent, LLMCall, ToolCall
from stretto.engines import local_engines


def speaks_of(question: str, text: str) -> str:
    """Return "yes" if the text has half of the question's longer words, else "no"."""
    words = re.findall(r"\w{4,}", question.lower())
    return "yes" if 2 * sum(word in text.lower() for word in words) >= len(words) else "no"


question, first, second = (Input(name, "text") for name in ("question", "first", "second"))

verdict = ToolCall(name="verdict", function="speaks_of", question=question, text=first)
fits = Condition(name="fits", value=verdict["result"], equals="yes")
from_first = LLMCall(
    name="from_first", prompt="answer", question=question, context=first, max_tokens=40, when=fits["yes"]
)
from_second = LLMCall(
    name="from_second", prompt="answer", question=question, context=second, max_tokens=40, when=fits["no"]
)
answer = FirstPresent(first=from_first["text"], second=from_second["text"])
app = Template(
    "second_look",
    verdict >> fits >> from_first >> from_second >> answer,
    outputs={"answer": answer["value"], "first": from_first["text"]},
)


async def main(asked: str, one: str, other: str) -> None:
    async with Runtime(local_engines(functions={"speaks_of": speaks_of})) as runtime:
        outputs = await runtime.run(app, {"question": asked, "first": one, "second": other})
        read = "the second text" if outputs["first"] is ABSENT else "the first text"
        print(f"{outputs['answer']} (read {read})")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
