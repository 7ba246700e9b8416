"""A graph that grows while it runs: an answer is judged and refined until it is good, or no text is left.

python examples/self_refine.py "Where did the captain live?" "It was cold." "The captain lived at the inn."

Source: generation with reflection, a dynamic pattern that the Teola paper leaves open (§8).
"""

import asyncio
import sys
from collections.abc import Mapping

from stretto import DEFAULT, Component, Input, Runtime, Template
from stretto.apps.components.builder import Builder
from stretto.engines import llm_engine
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port

INPUTS = (("question", "text"), ("texts", "list[text]"), ("draft", "text"))


def add_round(build: Builder, question: Ref, texts: Ref, draft: Ref, place: int) -> Ref:
    """Let the LLM judge the draft; what follows from the verdict is known when it is there."""
    judged = {"question": question, "text": draft}
    verdict = build.complete("verdict", "judge", judged, engine="llm", decode={"max_tokens": 4})
    known = {"question": question, "texts": texts, "draft": draft, "verdict": verdict}
    settings = {"body": "after_verdict", "result": "text", "place": place}
    return build.add("answer", "expand", tuple(Arg(*item) for item in known.items()), config=settings)


def after_verdict(inputs: Mapping[str, object]) -> Graph:
    """The draft, if it is good or no text is left; else a draft refined with the next text, and judged."""
    texts, place = inputs["texts"], inputs["place"]
    assert isinstance(texts, list)
    assert isinstance(place, int)
    if str(inputs["verdict"]).startswith("yes") or place == len(texts):
        return Graph("done", INPUTS, (), (), (("answer", Ref("draft")),))
    build = Builder()
    for name, _ in INPUTS:
        build.reserve(name)
    question, all_texts, draft = (Ref(name) for name, _ in INPUTS)
    context = Ref("texts", index=place)
    variables = {"question": question, "context": context, "draft": draft}
    refined = build.complete("refined", "refine", variables, engine="llm", decode={"max_tokens": 64})
    answer = add_round(build, question, all_texts, refined, place + 1)
    return Graph("round", INPUTS, tuple(build.primitives), (), (("answer", answer),))


class SelfRefine(Component):
    """Answer from the first text, and refine the answer with one more text at a time while it is not good."""

    ports = (Port("question", "text"), Port("texts", "list[text]"))
    outs = {"answer": "text"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        question, texts = build.value("question"), build.value("texts")
        variables = {"question": question, "context": Ref(texts.name, texts.port, 0)}
        draft = build.complete("draft", "answer", variables, engine="llm", decode={"max_tokens": 64})
        return {"answer": add_round(build, question, texts, draft, 1)}


refining = SelfRefine(question=Input("question", "text"), texts=Input("texts", "list[text]"))
vocabulary = DEFAULT.with_expansion("after_verdict", after_verdict)
app = Template("self_refine", refining, {"answer": refining["answer"]}, vocabulary)


async def main(asked: str, texts: list[str]) -> None:
    async with Runtime([llm_engine(None)], vocabulary=vocabulary) as runtime:
        print((await runtime.run(app, {"question": asked, "texts": texts}))["answer"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
