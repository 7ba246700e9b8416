"""Python functions as steps: one finds what the LLM reads, another one writes its answer to a file.

python examples/tool_call.py "How many spaces per indentation level?" examples/documents/pep-0008.rst n.txt
"""

import asyncio
import re
import sys
from pathlib import Path

from stretto import Input, Runtime, Template
from stretto.components import LLMCall, ToolCall
from stretto.engines import local_engines


def find(question: str, path: str) -> str:
    """Return the paragraph of a file that shares most words with the question."""
    wanted = set(re.findall(r"\w{4,}", question.lower()))
    paragraphs = re.split(r"\n\s*\n", Path(path).read_text("utf-8"))
    return " ".join(max(paragraphs, key=lambda p: len(wanted & set(re.findall(r"\w+", p.lower())))).split())


def note(question: str, answer: str, path: str) -> None:
    """Append a question and its answer to a file."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{question}\n  {answer}\n")


question, source, notes = Input("question", "text"), Input("source", "text"), Input("notes", "text")

finding = ToolCall(name="finding", function="find", question=question, path=source)
answering = LLMCall(prompt="answer", question=question, context=finding["result"])
# An effect changes something outside the app: it happens once, or the query says that this is in doubt.
noting = ToolCall(
    name="noting", function="note", result="effect", question=question, answer=answering["text"], path=notes
)
app = Template("note_down", finding >> answering >> noting, outputs={"answer": answering["text"]})


async def main(asked: str, path: str, notes_path: str) -> None:
    async with Runtime(local_engines(functions={"find": find, "note": note})) as runtime:
        outputs = await runtime.run(app, {"question": asked, "source": path, "notes": notes_path})
        print(outputs["answer"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
