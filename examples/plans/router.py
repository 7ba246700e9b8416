"""A small model answers; where its answer is short, a large one answers, too.

stretto plan examples/plans/router.yaml --requests examples/plans/questions.jsonl --machine 4xA100-80G
"""

from collections.abc import Mapping

from stretto import DEFAULT, Component, Input, Template
from stretto.apps.components.builder import Builder
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port

INPUTS = (("question", "text"), ("draft", "text"))
SHORT = 400
"""Characters of the longest draft that is short."""


def if_short(inputs: Mapping[str, object]) -> Graph:
    """The draft, or a long answer in place of a short one."""
    if len(str(inputs["draft"])) > SHORT:
        return Graph("draft_is_long", INPUTS, (), (), (("answer", Ref("draft")),))
    build = Builder()
    for name, _ in INPUTS:
        build.reserve(name)
    known = {"question": Ref("question"), "draft": Ref("draft")}
    prompt = "{question}\n\nA short answer: {draft}\n\nAnswer at length."
    answer = build.complete("answer", prompt, known, engine="large", decode={"max_tokens": 512})
    return Graph("draft_is_short", INPUTS, tuple(build.primitives), (), (("answer", answer),))


class Router(Component):
    """Answer with the small model, and with the large one if the answer is short."""

    ports = (Port("question", "text"),)
    outs = {"answer": "text"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        question = build.value("question")
        decode = {"max_tokens": 256}
        draft = build.complete("draft", "{question}", {"question": question}, engine="small", decode=decode)
        settings = {"body": "if_short", "result": "text", "access": "none"}
        args = (Arg("question", question), Arg("draft", draft))
        return {"answer": build.add("routed", "expand", args, config=settings)}


router = Router(question=Input("question", "text"))
vocabulary = DEFAULT.with_expansion("if_short", if_short)
app = Template("router", router, {"answer": router["answer"]}, vocabulary)
