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
from stretto.engines import llm_engine, web_engine
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port

MAX_ROUNDS = 4


def add_round(build: Builder, question: Ref, drafts: list[Ref]) -> Ref:
    """Search with the question and the last draft, refine that draft, and let the LLM judge the new one."""
    words = tuple(Arg(str(ref), ref) for ref in (question, *drafts[-1:]))
    query = build.add("query", "aggregate", words, config={"join": " "})
    hits = build.add("hits", "web_search", (Arg("queries", query),), engine="web", config={"k": 1})
    variables = {"question": question, "context": Ref(hits.name, index=0)}
    prompt = "answer"
    if drafts:
        prompt, variables["draft"] = "refine", drafts[-1]
    draft = build.complete("draft", prompt, variables, engine="llm", decode={"max_tokens": 96})
    judged = {"question": question, "text": draft}
    verdict = build.complete("verdict", "judge", judged, engine="llm", decode={"max_tokens": 4})
    known = (question, *drafts, draft)
    args = [Arg(f"draft{place}" if place else "question", ref) for place, ref in enumerate(known)]
    settings = {"body": "next_round", "result": "text"}
    return build.add("answer", "expand", (*args, Arg("verdict", verdict)), config=settings)


def next_round(inputs: Mapping[str, object]) -> Graph:
    """The last draft, if it is good, adds nothing or was the last one allowed; else one more round."""
    names = [name for name in inputs if name != "verdict"]
    types = tuple((name, "text") for name in names)
    texts = [inputs[name] for name in names]
    adds_nothing = texts[-1] in texts[:-1]
    if str(inputs["verdict"]).startswith("yes") or adds_nothing or len(names) > MAX_ROUNDS:
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
