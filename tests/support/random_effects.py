"""Random apps with effects in a written order: several ingestions into one collection, calls that change
something outside, searches and calls that read it, and pure steps between them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from stretto.graph.graph import Arg, Constant, Graph, Primitive, Ref, Slot, config_items
from stretto.graph.verify import verify
from support.random_apps import ENGINES, App, query_inputs

_INPUTS = (("question", "text"), ("files", "list[document]"), ("names", "list[text]"))
_PROMPT = (Constant("You answer questions from the context below, and say so when you cannot."), Slot("a"))


class _Steps:
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.primitives: list[Primitive] = []
        self.texts = [Ref("question")]
        self.lists = [Ref("names")]
        self.hits: list[Ref] = []

    def add(self, op: str, *args: Arg, hints: tuple[str, ...] = (), **config: object) -> Ref:
        name = f"{op}{len(self.primitives)}"
        engine = "llm" if op in ("prefill", "decode") else ENGINES.get(op)
        prompt = _PROMPT if op == "prefill" else ()
        self.primitives.append(Primitive(name, op, args, prompt, config_items(config), engine, hints))
        return Ref(name)

    def one(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def ingest(self) -> None:
        hints = ("batchable",)
        files = Arg("files", Ref("files"), each=True)
        chunks = self.add("chunk", files, hints=hints, tokens=self.one((2, 3, 5)))
        vectors = self.add("embed", Arg("texts", chunks, each=True), hints=hints)
        pair = (Arg("chunks", chunks, each=True), Arg("vectors", vectors, each=True))
        self.add("ingest", *pair, hints=self.one(((), hints)))

    def search(self) -> None:
        if self.one((True, False)):
            vectors = self.add("embed", Arg("texts", self.one(self.lists), each=True), hints=("batchable",))
            self.hits.append(
                self.add("search", Arg("queries", vectors, each=True), hints=("batchable",), k=3)
            )
        else:
            vector = self.add("embed", Arg("texts", self.one(self.texts)))
            self.hits.append(self.add("search", Arg("queries", vector), k=3))

    def note(self) -> None:
        args = [Arg("a", self.one(self.texts))]
        if self.one((True, False)):
            args.append(Arg("b", self.one(self.lists), each=True))
        self.add("call", *args, hints=("batchable",), result="effect", idempotent=True)

    def look(self) -> None:
        self.lists.append(self.add("call", Arg("a", self.one(self.texts)), result="list[text]"))

    def look_up_each(self) -> None:
        each = Arg("b", self.one(self.lists), each=True)
        found = self.add("call", each, hints=("batchable",), result="list[text]")
        self.add("call", Arg("c", found, each=True), hints=("batchable",), result="effect", idempotent=True)

    def complete(self) -> None:
        kv = self.add("prefill", Arg("a", self.one(self.texts)))
        if self.one((True, False)):
            self.texts.append(self.add("decode", Arg("kv", kv), max_tokens=9))
        else:
            hints = ("splittable",)
            decode = self.add("decode", Arg("kv", kv), hints=hints, items="json_list", max_tokens=9)
            self.lists.append(decode)


_STEPS = (
    _Steps.ingest,
    _Steps.search,
    _Steps.note,
    _Steps.look,
    _Steps.look_up_each,
    _Steps.complete,
)


@st.composite
def effect_apps(draw: Any) -> App:
    """Draw an app of three to eight parts, each written after the one before, and a query's inputs."""
    steps = _Steps(draw)
    for _ in range(draw(st.integers(3, 8))):
        steps.one(_STEPS)(steps)
    steps.search()
    outputs = tuple((f"out{i}", ref) for i, ref in enumerate([*steps.hits, steps.texts[-1]]))
    names = [primitive.name for primitive in steps.primitives]
    graph = Graph("effects", _INPUTS, tuple(steps.primitives), tuple(pairwise(names)), outputs)
    verify(graph)
    return App(graph, draw(query_inputs()))
