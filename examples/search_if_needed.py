"""A search that is made only if it is needed: the answer comes from notes at hand, or else from documents.

A small LLM drafts an answer from the notes and judges the draft. Only if it is not good, the documents are
searched, in place of the web, and the answer is made from what is found.

python examples/search_if_needed.py examples/documents/treasure-island-opening.txt
"""

import asyncio
import sys
from pathlib import Path

from stretto import ABSENT, Input, Runtime, Template, load_documents
from stretto.components import Generation, Judge, Reading, WebSearch
from stretto.engines import llm_engine, search_engines

NOTES = "The key of the library is kept in the office. The team meets on Tuesday at ten in the morning."
QUESTIONS = ("Where is the key of the library kept?", "What did the captain promise to pay Jim every month?")

question, notes = Input("question", "text"), Input("notes", "text")

draft = Generation(name="draft", question=question, context=notes, prompt="answer", engine="llm_small")
judge = Judge(question=question, text=draft["text"], engine="llm_small")
search = WebSearch(queries=question, needed=judge["no"])
reading = Reading(hits=search["hits"], draft=draft["text"])
answer = Generation(name="answer", question=question, context=reading["context"], prompt="answer")
app = Template(
    "search_if_needed",
    draft >> judge >> search >> reading >> answer,
    {"answer": answer["text"], "found": search["hits"]},
)


async def main(paths: list[Path]) -> None:
    async with Runtime(search_engines(llm_engine(None), None, load_documents(paths))) as runtime:
        for asked in QUESTIONS:
            outputs = await runtime.run(app, {"question": asked, "notes": NOTES})
            how = (
                "without a search"
                if outputs["found"] is ABSENT
                else f"{len(outputs['found'])} passages found"
            )
            print(f"{asked} {outputs['answer']} ({how})")


if __name__ == "__main__":
    asyncio.run(main([Path(path) for path in sys.argv[1:]]))
