"""A search that is made only if it is needed: the answer comes from notes at hand, or else from documents.

A Python function tells whether the notes speak of what is asked. Only if they do not, the documents are
searched, in place of the web. The default LLM is too small to judge that. The app "search" (`stretto explain
--app search`) lets an LLM draft an answer and judge its draft.

python examples/search_if_needed.py examples/documents/treasure-island-opening.txt
"""

import asyncio
import re
import sys
from pathlib import Path

from stretto import ABSENT, Input, Runtime, Template, load_documents
from stretto.components import Condition, FirstPresent, LLMCall, Synthesis, ToolCall, WebSearch
from stretto.engines import local_engines, web_engine

NOTES = "Anna keeps the key of the library. The reading room has forty chairs."
QUESTIONS = (
    "Who keeps the key of the library?",
    "What did the captain promise to pay Jim every month?",
)


def speaks_of(question: str, text: str) -> str:
    """Return "yes" if the text has half of the question's longer words, else "no"."""
    words = re.findall(r"\w{4,}", question.lower())
    return "yes" if 2 * sum(word in text.lower() for word in words) >= len(words) else "no"


question, notes = Input("question", "text"), Input("notes", "text")

verdict = ToolCall(function="speaks_of", question=question, text=notes)
at_hand = Condition(value=verdict["result"], equals="yes")
known = LLMCall(
    name="known",
    prompt="answer_shortly",
    question=question,
    context=notes,
    max_tokens=40,
    when=at_hand["yes"],
)
search = WebSearch(queries=question, needed=at_hand["no"])
# These three are for a small LLM; leave them out for a larger one.
found = Synthesis(
    name="found", question=question, hits=search["hits"], mode="quote", prompt="answer_shortly", support=1.0
)
answer = FirstPresent(known=known["text"], found=found["answer"])
app = Template(
    "search_if_needed",
    verdict >> at_hand >> known >> search >> found >> answer,
    {"answer": answer["value"], "hits": search["hits"]},
)


async def main(paths: list[Path]) -> None:
    engines = [*local_engines(functions={"speaks_of": speaks_of}), web_engine(None, load_documents(paths))]
    async with Runtime(engines) as runtime:
        for asked in QUESTIONS:
            outputs = await runtime.run(app, {"question": asked, "notes": NOTES})
            hits = outputs["hits"]
            how = "without a search" if hits is ABSENT else f"{len(hits)} passages found"
            print(f"{asked}\n  {outputs['answer']} ({how})")


if __name__ == "__main__":
    asyncio.run(main([Path(path) for path in sys.argv[1:]]))
