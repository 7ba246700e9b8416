"""Random applications for property tests: graphs that use the whole table of ops, with inputs to run them on.

They are grown step by step from typed values, so every one verifies; the steps imitate what applications
do (retrieve, expand a query, refine, map and reduce), so that every pass finds something to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from stretto.apps.vocabulary import DEFAULT
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Arg, Constant, Graph, Primitive, PromptParts, Ref, Slot, config_items
from stretto.graph.passes.base import Profiles
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.text import parse_graph
from stretto.graph.verify import verify
from stretto.model.values import Document, Section

ENGINES = {
    "chunk": "cpu",
    "call": "cpu",
    "embed": "embedding",
    "ingest": "vectors",
    "search": "vectors",
    "rerank": "rerank",
    "web_search": "web",
}
CONSTANTS = (
    "You answer questions from the context below, in one sentence, and say so when you cannot.",
    "Context: ",
    " Answer: ",
    "Rewrite the question as a JSON list of three questions that a search engine can answer: ",
)

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class App:
    """A graph, and the inputs of one query for it."""

    graph: Graph
    inputs: Mapping[str, object]


@dataclass(frozen=True)
class _Value:
    ref: Ref
    type: str


class _Builder:
    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.primitives: list[Primitive] = []
        self.values = [
            _Value(Ref("question"), "text"),
            _Value(Ref("files"), "list[document]"),
            _Value(Ref("names"), "list[text]"),
        ]
        self.guards: list[Ref] = []
        self.effect: Ref | None = None
        self.has_searched = False

    # --- drawing

    def chance(self, percent: int) -> bool:
        return int(self.draw(st.integers(0, 99))) < percent

    def one_of(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def recent(self, options: list[Any]) -> Any:
        """Draw one of the options; the last ones are likelier, so that graphs grow deep."""
        return self.one_of(options[-3:] if len(options) > 3 and self.chance(60) else options)

    def lists(self, *items: str) -> list[Ref]:
        return [v.ref for v in self.values if v.type in [f"list[{item}]" for item in items]]

    def scalars(self, *types: str) -> list[Ref]:
        whole = [v.ref for v in self.values if v.type in types]
        items = [replace(ref, index=self.one_of((0, 1, 2, 5))) for ref in self.lists(*types)]
        return whole + items

    # --- growing

    def add(
        self,
        op: str,
        args: list[Arg],
        type_: str,
        *,
        prompt: PromptParts = (),
        engine: str | None = None,
        hints: tuple[str, ...] = (),
        **config: object,
    ) -> Ref:
        name = f"{op}{len(self.primitives)}"
        if self.guards and self.chance(15):
            args = [*args, Arg("when", self.one_of(self.guards))]
        engine = engine or ENGINES.get(op)
        self.primitives.append(
            Primitive(name, op, tuple(args), prompt, config_items(config), engine, tuple(hints))
        )
        if type_ not in ("kv", "effect", ""):
            self.values.append(_Value(Ref(name), type_))
        return Ref(name)

    def mapped(
        self, op: str, port: str, source: Ref, item: str, *more: Arg, flat: bool = False, **config: Any
    ) -> Ref:
        hints = ("batchable",) if self.chance(90) else ()
        type_ = item if flat else f"list[{item}]"
        return self.add(op, [Arg(port, source, each=True), *more], type_, hints=hints, **config)

    def chunks(self) -> None:
        self.mapped("chunk", "files", Ref("files"), "list[chunk]", flat=True, tokens=self.one_of((2, 5)))

    def embed(self) -> None:
        sources = self.lists("text", "chunk", "hit")
        if self.chance(80):
            self.mapped("embed", "texts", self.recent(sources), "vector")
        else:
            self.add("embed", [Arg("texts", self.one_of(self.scalars("text", "chunk", "hit")))], "vector")

    def index(self) -> None:
        """Add chunk, embed and ingest; one collection, and all searches after it."""
        if self.effect is not None or self.has_searched:
            return
        self.chunks()
        chunks = self.values[-1].ref
        vectors = self.mapped("embed", "texts", chunks, "vector")
        pair = [Arg("chunks", chunks, each=True), Arg("vectors", vectors, each=True)]
        self.effect = self.add("ingest", pair, "effect", hints=("batchable",))

    def search(self) -> None:
        if not (self.lists("vector") or self.scalars("vector")):
            self.embed()
        self.has_searched = True
        index = [Arg("index", self.effect)] if self.effect is not None else []
        if self.lists("vector") and self.chance(80):
            source = self.recent(self.lists("vector"))
            self.mapped("search", "queries", source, "list[hit]", *index, k=self.one_of((1, 3)))
        else:
            queries = Arg("queries", self.one_of(self.scalars("vector")))
            self.add("search", [queries, *index], "list[hit]", k=self.one_of((1, 3)))

    def web_search(self) -> None:
        if self.chance(50):
            self.mapped("web_search", "queries", self.recent(self.lists("text")), "list[hit]", k=2)
        else:
            self.add("web_search", [Arg("queries", self.one_of(self.scalars("text")))], "list[hit]", k=3)

    def rerank(self) -> None:
        question = Arg("question", self.one_of(self.scalars("text")))
        if self.lists("list[hit]") and self.chance(70):
            source = self.recent(self.lists("list[hit]"))
            hints = ("batchable",)
            args = [question, Arg("hits", source, each=True)]
            self.add("rerank", args, "list[list[hit]]", hints=hints)
        elif self.scalars("list[hit]"):
            self.add("rerank", [question, Arg("hits", self.one_of(self.scalars("list[hit]")))], "list[hit]")

    def call(self) -> None:
        """Add a call of the fake engine: the tuple of its inputs, which is a list of texts."""
        texts = self.scalars("text")
        scalars = [Arg("a", self.one_of(texts))]
        if self.chance(50):
            each = Arg("b", self.recent(self.lists("text")), each=True)
            hints = ("batchable",) if self.chance(70) else ()
            self.add("call", [*scalars, each], "list[list[text]]", hints=hints, result="list[text]")
        else:
            self.add("call", [*scalars, Arg("b", self.one_of(texts))], "list[text]", result="list[text]")

    def complete(self) -> None:
        """Add a prompt of known and less known segments, and one or two completions of it."""
        parts: list[Constant | Slot] = []
        args: dict[str, Arg] = {}
        if self.chance(80):
            parts += [Constant(self.one_of(CONSTANTS[:1] + CONSTANTS[3:])), Slot("question")]
            args["question"] = Arg("question", Ref("question"))
        is_mapped = self.chance(25)
        for _ in range(int(self.draw(st.integers(1, 3)))):
            if self.chance(60):
                parts.append(Constant(self.one_of(CONSTANTS)))
            if is_mapped and not any(arg.each for arg in args.values()):
                arg = Arg("item", self.recent(self.lists("text", "chunk", "hit")), each=True)
            else:
                ref = self.recent(self.scalars("text", "hit", "list[hit]", "list[text]"))
                arg = Arg(str(ref), ref)
            if arg.port not in args:
                args[arg.port] = arg
                parts.append(Slot(arg.port))
        if self.chance(50):
            parts.append(Constant(self.one_of(CONSTANTS)))
        prompt = tuple(part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1])
        is_mapped = any(arg.each for arg in args.values())
        engine = self.one_of(("llm", "llm", "llm", "judge"))
        kv = self.add("prefill", list(args.values()), "kv", prompt=prompt, engine=engine)
        for _ in range(2 if self.chance(20) else 1):
            if self.chance(30):
                config: dict[str, Any] = {"items": "json_list", "max_tokens": 10}
                hints: tuple[str, ...] = ("splittable",) if self.chance(80) else ()
                type_ = "list[text]"
            else:
                config, hints, type_ = {"max_tokens": self.one_of((3, 20))}, (), "text"
            if is_mapped and self.chance(50):
                hints = ("batchable", *hints)
            type_ = f"list[{type_}]" if is_mapped else type_
            self.add("decode", [Arg("kv", kv, each=is_mapped)], type_, engine=engine, hints=hints, **config)

    def expand_query(self) -> None:
        """Add several questions made from one, and what each of them needs next, in step with their
        decoding.
        """
        prompt = (Constant(CONSTANTS[3]), Slot("question"))
        kv = self.add(
            "prefill", [Arg("question", Ref("question"))], "kv", prompt=prompt, engine="llm", hints=()
        )
        queries = self.add(
            "decode",
            [Arg("kv", kv)],
            "list[text]",
            engine="llm",
            hints=("splittable",),
            items="json_list",
            max_tokens=10,
        )
        self.add("embed", [Arg("texts", queries, each=True)], "list[vector]", hints=("batchable",))

    def refine(self) -> None:
        """Add answers that improve on one another, one hit each; the last that exists is the answer."""
        if not self.lists("hit"):
            self.web_search()
        hits = self.lists("hit", "list[hit]")
        top = self.add(
            "aggregate",
            [Arg("hits", self.recent(hits))],
            "list[hit]",
            best=self.one_of((1, 2, 3)),
            distinct=True,
        )
        answers: list[Ref] = []
        for number in range(3):
            parts: list[Constant | Slot] = [Constant(CONSTANTS[0]), Slot("question"), Constant(CONSTANTS[1])]
            args = [Arg("question", Ref("question")), Arg("hit", replace(top, index=number))]
            parts.append(Slot("hit"))
            if answers:
                parts += [Constant(CONSTANTS[2]), Slot("answer")]
                args.append(Arg("answer", answers[-1]))
            kv = self.add("prefill", args, "kv", prompt=tuple(parts), engine="llm")
            answers.append(self.add("decode", [Arg("kv", kv)], "text", engine="llm", max_tokens=9))
        self.add("select", [Arg(str(ref), ref) for ref in reversed(answers)], "text")

    def aggregate(self) -> None:
        kind = self.one_of(("best", "join", "plain"))
        if kind == "best" and (hits := self.lists("hit", "list[hit]")):
            chosen = self._some(hits)
            self.add("aggregate", chosen, "list[hit]", best=self.one_of((1, 3)), distinct=self.chance(50))
        elif kind == "join":
            chosen = self._some(self.scalars("text", "list[text]", "hit"))
            self.add("aggregate", chosen, "text", join=self.one_of((" ", "\n")))
        else:
            self.add("aggregate", self._some(self.lists("text")), "list[text]")

    def select(self) -> None:
        type_ = self.one_of(sorted({value.type for value in self.values} - {"list[document]"}))
        self.add("select", self._some(self.scalars(type_)), type_)

    def condition(self) -> None:
        value = self.one_of(self.scalars("text", "list[hit]", "list[text]"))
        equals = {"equals": self.one_of(("a", "b", "7"))} if self.chance(60) else {}
        ref = self.add("condition", [Arg("value", value)], "", **equals)
        type_ = verify(self.graph([], []))[ref.name, "yes"]
        branches = [Ref(ref.name, "yes"), Ref(ref.name, "no")]
        self.values += [_Value(branch, type_) for branch in branches]
        self.guards += branches

    def expand(self) -> None:
        body = self.one_of(sorted(BODIES))
        args = [Arg("text", self.one_of(self.scalars("text"))), Arg("texts", self.recent(self.lists("text")))]
        self.add("expand", args, "text", body=body, result="text")

    def _some(self, refs: list[Ref]) -> list[Arg]:
        count = int(self.draw(st.integers(1, 3)))
        chosen = dict.fromkeys(self.recent(refs) for _ in range(count))
        return [Arg(str(ref), ref) for ref in chosen]

    def graph(self, order: list[tuple[str, str]], outputs: list[tuple[str, Ref]]) -> Graph:
        inputs = (("question", "text"), ("files", "list[document]"), ("names", "list[text]"))
        return Graph("app", inputs, tuple(self.primitives), tuple(order), tuple(outputs))


STEPS = (
    _Builder.embed,
    _Builder.search,
    _Builder.web_search,
    _Builder.rerank,
    _Builder.call,
    _Builder.complete,
    _Builder.complete,
    _Builder.complete,
    _Builder.refine,
    _Builder.aggregate,
    _Builder.select,
    _Builder.condition,
    _Builder.expand,
)


@st.composite
def apps(draw: Draw) -> App:
    """Draw an application of 5 to 30 primitives, and a query's inputs."""
    builder = _Builder(draw)
    if builder.chance(70):
        builder.index()
    if builder.chance(80):
        builder.expand_query()
    if builder.chance(70):
        builder.search()
        builder.aggregate()
    if builder.chance(85):
        builder.refine()
    for _ in range(int(draw(st.integers(1, 8)))):
        builder.one_of(STEPS)(builder)
    if not builder.primitives:
        builder.complete()
    names = [primitive.name for primitive in builder.primitives]
    order = list(pairwise(names)) if builder.chance(50) else []
    for _ in range(int(draw(st.integers(0, 3)))):
        i, j = draw(st.integers(0, len(names) - 1)), draw(st.integers(0, len(names) - 1))
        if i != j:
            order.append((names[min(i, j)], names[max(i, j)]))
    visible = [value.ref for value in builder.values]
    outputs = list(dict.fromkeys(builder.recent(visible) for _ in range(int(draw(st.integers(1, 3))))))
    graph = builder.graph(list(dict.fromkeys(order)), [(f"out{i}", ref) for i, ref in enumerate(outputs)])
    verify(graph)
    return App(graph, draw(query_inputs()))


@st.composite
def query_inputs(draw: Draw) -> Mapping[str, object]:
    """Draw a question, zero to three documents and zero to four names."""
    words = st.sampled_from(("alpha", "beta", "gamma", "delta", "epsilon", "zeta"))
    texts = st.lists(words, min_size=1, max_size=14).map(" ".join)
    files = [
        Document(f"{i}.txt", tuple(Section(text) for text in draw(st.lists(texts, max_size=2))), str(i))
        for i in range(draw(st.integers(0, 3)))
    ]
    return {"question": draw(texts), "files": files, "names": draw(st.lists(texts, max_size=4))}


# --- what an `expand` may turn into


def _one(inputs: Mapping[str, object]) -> str:
    return """
        graph one(%text: text, %texts: list[text])
          %kv = prefill([c"Answer shortly: ", %text]) : kv @llm
          %a  = decode(%kv) {max_tokens=4} : text @llm
          return %a
        """


def _leaves(inputs: Mapping[str, object]) -> str:
    """Return a subgraph with one answer per text, known only at run time, and their synthesis."""
    texts = inputs["texts"]
    assert isinstance(texts, list | tuple)
    lines = []
    for i in range(len(texts)):
        lines.append(
            f'%kv{i} = prefill([c"Answer from the context, shortly: ", %text, %texts[{i}]]) : kv @llm'
        )
        lines.append(f"%a{i} = decode(%kv{i}) {{max_tokens=4}} : text @llm")
    answers = ", ".join(["%text", *(f"%a{i}" for i in range(len(texts)))])
    return "\n".join(
        [
            "graph leaves(%text: text, %texts: list[text])",
            *lines,
            f'%all = aggregate({answers}) {{join=" "}} : text',
            "return %all",
        ]
    )


def _nested(inputs: Mapping[str, object]) -> str:
    return """
        graph nested(%text: text, %texts: list[text])
          %kv    = prefill([c"Questions as a JSON list: ", %text]) : kv @llm
          %more  = decode(%kv) {items="json_list", max_tokens=10} : list[text] @llm #splittable
          %calls = call(a=%text, b=each %more) {result="text"} : list[text] @cpu #batchable
          %deep  = expand(text=%text, texts=%more) {body="leaves", result="text"} : text
          %long  = condition(%texts) : list[text]
          %one   = expand(text=%deep, texts=%texts, when=%long.yes) {body="one", result="text"} : text
          %end   = select(%one, %deep) : text
          return %end
        """


def _echo(inputs: Mapping[str, object]) -> str:
    """Return a subgraph whose output is its own input."""
    return "graph echo(%text: text, %texts: list[text])\nreturn %texts[1]"


BODIES: dict[str, Callable[[Mapping[str, object]], str]] = {
    "one": _one,
    "leaves": _leaves,
    "nested": _nested,
    "echo": _echo,
}


def expand_body(body: str, inputs: Mapping[str, object]) -> Graph:
    """Return the subgraph of an `expand`, as lowered: one of ours, or one that Stretto comes with."""
    ours = BODIES.get(body)
    return DEFAULT.expansions[body](inputs) if ours is None else parse_graph(ours(inputs))


def expander(
    profiles: Profiles,
) -> Callable[[str, Mapping[str, object], tuple[str, ...]], ExecutionGraph]:
    """Return the `expand` of a driver: it lowers, optimises and compiles."""

    def expand(body: str, inputs: Mapping[str, object], passes: tuple[str, ...]) -> ExecutionGraph:
        chosen = {name: run_pass for name, run_pass in PASSES.items() if name in passes}
        return compile_graph(optimise(expand_body(body, inputs), profiles, chosen), profiles)

    return expand
