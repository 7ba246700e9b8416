"""A graph that grows while it runs: search, answer, and search again with what the answer adds, if it must.

python examples/iterative_retrieval.py "When should tabs be used?" examples/documents/pep-0008.rst

Source: iterative retrieval, a dynamic pattern that the Teola paper leaves open (§8).
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from stretto import DEFAULT, Component, Document, Input, Runtime, Template, load_documents
from stretto.apps.components.builder import Builder
from stretto.documents.support import NOT_FOUND
from stretto.engines import llm_engine, web_engine
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port

MAX_ROUNDS = 4


def add_round(build: Builder, question: Ref, drafts: list[Ref]) -> Ref:
    """Search with the question and the last draft, let the LLM shorten the sentence that fits best, and take
    the sentence itself if the LLM's words are not in it.
    """
    words = tuple(Arg(str(ref), ref) for ref in (question, *drafts[-1:]))
    query = build.add("query", "aggregate", words, config={"join": " "})
    hits = build.add("hits", "web_search", (Arg("queries", query),), engine="web", config={"k": 3})
    given = (Arg("question", question), Arg("hits", hits))
    quote = build.add("quote", "quote", given)
    variables = {"question": question, "context": quote}
    short = build.complete("short", "answer_shortly", variables, engine="llm", decode={"max_tokens": 40})
    sentences = (Arg("quote", quote), Arg("short", short))
    draft = build.add("draft", "supported", (*given, *sentences), config={"share": 1.0})
    known = (question, *drafts, draft)
    args = [Arg(f"draft{place}" if place else "question", ref) for place, ref in enumerate(known)]
    settings = {"body": "next_round", "result": "text"}
    return build.add("answer", "expand", tuple(args), config=settings)


def next_round(inputs: Mapping[str, object]) -> Graph:
    """The last draft, if it is an answer, adds nothing or was the last one allowed; else one more round."""
    names = list(inputs)
    types = tuple((name, "text") for name in names)
    texts = [str(text) for text in inputs.values()]
    is_answer = not texts[-1].startswith(NOT_FOUND)
    adds_nothing = texts[-1] in texts[:-1]
    if is_answer or adds_nothing or len(names) > MAX_ROUNDS:
        return Graph("done", types, (), (), (("answer", Ref(names[-1])),))
    build = Builder()
    for name in names:
        build.reserve(name)
    answer = add_round(build, Ref("question"), [Ref(name) for name in names[1:]])
    return Graph("round", types, tuple(build.primitives), (), (("answer", answer),))


class IterativeRetrieval(Component):
    """Search and answer in rounds."""

    ports = (Port("question", "text"),)
    outs = {"answer": "text"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        return {"answer": add_round(build, build.value("question"), [])}


retrieving = IterativeRetrieval(question=Input("question", "text"))
vocabulary = DEFAULT.with_expansion("next_round", next_round)
app = Template("iterative_retrieval", retrieving, {"answer": retrieving["answer"]}, vocabulary)


async def main(asked: str, documents: list[Document]) -> None:
    engines = [llm_engine(None), web_engine(None, documents)]
    async with Runtime(engines, vocabulary=vocabulary) as runtime:
        print((await runtime.run(app, {"question": asked}))["answer"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], load_documents([Path(path) for path in sys.argv[2:]])))
