"""Components and templates: what fits together, what is refused and by which name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from stretto import Component, Input, Template, parallel
from stretto.apps import advanced_rag, naive_rag
from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Chain, OutPort
from stretto.apps.plan_cache import PlanCache
from stretto.components import Condition, Indexing, QueryExpansion, Reranking, Searching, Synthesis
from stretto.graph.graph import Arg, Ref
from stretto.graph.ops import Port
from stretto.model.errors import ConfigError, StrettoError, TemplateError

if TYPE_CHECKING:
    from _typeshed import TraceFunction

QUESTION, FILES = Input("question", "text"), Input("files", "list[document]")
SHELF = Input("shelf", "text")


class Step(Component):
    """A component that turns text into text."""

    ports = (Port("text", "text"), Port("more", "text", optional=True))
    outs = {"text": "text"}  # noqa: RUF012

    @dataclass(frozen=True)
    class Config:
        number: int = 1
        share: float = 0.5
        flag: bool = False
        word: str = "w"
        anything: object = None

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ConfigError(f"number={self.number} is negative")

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        args = (build.take("text"), *([build.take("more")] if build.is_fed("more") else []))
        settings = {"result": "text", "anything": config.anything}
        return {"text": build.add(self.name, "call", args, engine="calls", config=settings)}


def step(name: str, source: Any = None, **settings: Any) -> Step:
    feeds = {} if source is None else {"text": source}
    return Step(name=name, **feeds, **settings)


def edges(*components: Step, flow: Any = None) -> set[str]:
    """The order edges of an app that ends with the last component."""
    app = Template("t", flow if flow is not None else components, {"out": components[-1]["text"]})
    return {f"{before} > {after}" for before, after in app.lower({}).order}


# --- chains


def test_order_comes_from_chains_and_data_from_ports() -> None:
    a, b, c, d = (step(name, QUESTION) for name in "abcd")
    assert edges(a, b) == set()
    assert edges(a, b, flow=a >> b) == {"a > b"}
    assert edges(a, b, c, flow=a >> b >> c) == {"a > b", "b > c"}
    assert edges(a, b, c, flow=a >> (b >> c)) == {"a > b", "b > c"}
    assert edges(a, b, c, d, flow=a >> parallel(b, c) >> d) == {"a > b", "a > c", "b > d", "c > d"}
    assert edges(a, b, c, d, flow=parallel(a >> b, c) >> d) == {"a > b", "b > d", "c > d"}
    assert edges(a, b, flow=a >> b >> parallel()) == {"a > b"}


def test_components_come_after_what_feeds_them_however_they_are_given() -> None:
    a = step("a", QUESTION)
    b = step("b", a["text"])
    c = step("c", b["text"])
    for given in ([c, a, b], [c], [], c):
        app = Template("t", given, {"out": c["text"]})
        assert [component.name for component in app.components] == ["a", "b", "c"]
        assert [primitive.name for primitive in app.lower({})] == ["a", "b", "c"]


def num_opcodes_to_build(number: int, *, chained: bool) -> int:
    """The number of Python instructions that building a template of `number` components takes."""
    steps = [step(f"s{i}", QUESTION) for i in range(number)]
    flow: Any = steps
    if chained:
        flow = Chain(tuple(steps), tuple(pairwise(steps)), (steps[0],), (steps[-1],))
    outputs = {one.name: one["text"] for one in steps}
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> TraceFunction:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        Template("t", flow, outputs)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("chained", [False, True])
def test_building_a_template_is_linear_in_its_components(chained: bool) -> None:
    assert num_opcodes_to_build(400, chained=chained) <= 8.8 * num_opcodes_to_build(50, chained=chained)


def test_order_edges_go_from_tails_to_heads() -> None:
    """Teola, Algorithm 1: nothing within a component, and nothing between those that `>>` does not join."""
    graph = advanced_rag().lower({})
    assert set(graph.order) == {
        ("indexed", "queries.prompt"),
        ("queries", "query_vectors"),
        ("hits", "scored"),
        ("top", "draft1.prompt"),
    }
    synthesis = Synthesis(question=QUESTION, hits=Input("hits", "list[hit]"), mode="tree", num_hits=2)
    after = step("after", synthesis["answer"])
    before = step("before", QUESTION)
    app = Template("t", before >> synthesis >> after, {"out": after["text"]})
    assert set(app.lower({}).order) == {
        ("before", "leaf1.prompt"),
        ("before", "leaf2.prompt"),
        ("answer", "after"),
    }


def test_feeding_later_is_feeding() -> None:
    a, b = step("a"), step("b", QUESTION)
    a.feed(text=b["text"])
    assert [c.name for c in Template("t", a, {"out": a["text"]}).components] == ["b", "a"]


def test_an_input_can_be_an_output_and_names_do_not_clash() -> None:
    a = step("question", QUESTION)
    app = Template("t", a, {"out": a["text"], "asked": QUESTION})
    graph = app.lower({})
    assert [p.name for p in graph] == ["question.2"]
    assert graph.outputs == (("out", Ref("question.2")), ("asked", Ref("question")))


# --- what is refused, and by which name


def _cycle_by_data() -> Template:
    a, b = step("a"), step("b")
    a.feed(text=b["text"])
    b.feed(text=a["text"])
    return Template("t", [a, b], {"out": b["text"]})


def _cycle_by_order() -> Template:
    a, b, c = step("a", QUESTION), step("b", QUESTION), step("c", QUESTION)
    return Template("t", a >> b >> c >> a, {"out": c["text"]})


def _cycle_by_both() -> Template:
    a = step("a", QUESTION)
    b = step("b", a["text"])
    return Template("t", b >> a, {"out": b["text"]})


def _itself() -> Template:
    a = step("a", QUESTION)
    return Template("t", a >> a, {"out": a["text"]})


def _by_pairs(zipped: str = "calls") -> Template:
    class Pairs(Component):
        ports = (Port("a", "list[text]"), Port("b", "list[text]"))
        outs = {"pairs": "list[text]"}  # noqa: RUF012

        def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
            args = (build.take("a", each=True), build.take("b", each=True))
            return {"pairs": build.add("zipped", "call", args, engine="calls", config={"result": "text"})}

    pairs = Pairs(a=Input("some", "list[text]"), b=Input("others", "list[text]"))
    return Template("t", [step("fine", QUESTION), pairs], {"pairs": pairs["pairs"]})


def _lowers_nothing() -> Template:
    class Lazy(Step):
        def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
            return {}

    lazy = Lazy(text=QUESTION)
    return Template("t", lazy, {"out": lazy["text"]})


def _takes_what_is_not_fed() -> Template:
    class Asking(Step):
        def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
            return {"text": build.add("asked", "call", (build.take("texts", to="text"),), engine="calls")}

    asking = Asking(text=QUESTION)
    return Template("t", asking, {"out": asking["text"]})


def _wrong_type() -> Template:
    searching = Searching(queries=QUESTION, collection=SHELF)
    return Template("t", step("a", searching["hits"]), {})


def _wrong_input() -> Template:
    return Template("t", step("a", Input("n", "number")), {})


def _not_fed() -> Template:
    return Template("t", Reranking(question=QUESTION), {})


def _same_names() -> Template:
    a, b = Searching(queries=QUESTION, collection=SHELF), Searching(queries=QUESTION, collection=SHELF)
    return Template("t", [a, b], {"one": a["hits"], "other": b["hits"]})


def _two_types() -> Template:
    return Template("t", [step("a", QUESTION), Indexing(files=Input("question", "list[document]"))], {})


REFUSED: list[tuple[Callable[[], object], type[StrettoError], str]] = [
    (_cycle_by_data, TemplateError, "a cycle: b → a.text, a → b.text"),
    (_cycle_by_order, TemplateError, "a cycle: c >> a, a >> b, b >> c"),
    (_cycle_by_both, TemplateError, "a cycle: a → b.text, b >> a"),
    (_itself, TemplateError, "a cycle: a >> a"),
    (
        _by_pairs,
        TemplateError,
        "pairs: %zipped: port 'b' zips %others with a stream of different origin (%others and %some)",
    ),
    (_lowers_nothing, TemplateError, "lazy: nothing was lowered for the out port 'text'"),
    (_takes_what_is_not_fed, TemplateError, "asking: nothing feeds its in port 'texts'; fed: text"),
    (_wrong_type, TemplateError, "a: port 'text' takes text, searching.hits is list[hit]"),
    (_wrong_input, TemplateError, "a: port 'text' takes text, n is number"),
    (_not_fed, TemplateError, "reranking: port 'hits' is not fed"),
    (_same_names, TemplateError, "two components are called 'searching': give one a `name=`"),
    (_two_types, TemplateError, "input 'question' is text and list[document]"),
    (
        lambda: Template("t", step("a", Input("x", "texts")), {}),
        TemplateError,
        "input 'x' has the unknown type 'texts'",
    ),
    (lambda: step("a", "text"), TemplateError, "a: port 'text' is fed with a str; feed it an Input, or an"),
    (lambda: step("a", step("b", QUESTION)), TemplateError, "a: port 'text' is fed with a Step"),
    (
        lambda: step("a", QUESTION, size=3),
        TemplateError,
        "a: there is no port or setting 'size'; ports: text, more",
    ),
    (
        lambda: Condition(value=QUESTION, when=QUESTION),
        TemplateError,
        "condition: there is no port or setting 'when'; ports: value; LLMCall and ToolCall have it",
    ),
    (lambda: step("a")["texts"], TemplateError, "a: there is no out port 'texts'; there are text"),
    (lambda: step("a").feed(word=QUESTION), TemplateError, "a: there is no port or setting 'word'; ports"),
    (lambda: step("a", number=-1), ConfigError, "a: number=-1 is negative"),
    (lambda: step("a", number=True), ConfigError, "a: number must be int, got True"),
    (
        lambda: Template("t", step("a", QUESTION, anything={}), {}),
        ConfigError,
        "a: anything={}: a setting is a scalar or a list of scalars",
    ),
    (
        lambda: Template(
            "t", Synthesis(question=QUESTION, hits=Input("h", "list[hit]"), prompt="{context}"), {}
        ),
        ConfigError,
        "synthesis: a prompt does not use {question}: '{context}'",
    ),
]


@pytest.mark.parametrize(("build", "kind", "message"), REFUSED)
def test_a_template_that_cannot_be_is_refused_when_it_is_built(
    build: Callable[[], object], kind: type[StrettoError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        build()
    assert str(caught.value).startswith(message)


# --- configuration of a query


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"search": {}}, "naive_rag has no component 'search'; it has indexing, searching, synthesis"),
        (
            {"searching": {"k": 3}},
            "searching: there is no setting 'k'; there are top_k, embedding, vectors",
        ),
        ({"searching": {"top_k": "3"}}, "searching: top_k must be int, got '3'"),
        ({"searching": {"top_k": True}}, "searching: top_k must be int, got True"),
        ({"searching": {"top_k": 2.0}}, "searching: top_k must be int, got 2.0"),
        ({"searching": {"top_k": None}}, "searching: top_k must be int, got None"),
        ({"searching": {"top_k": 0}}, "searching: top_k=0 is less than 1"),
        (
            {"synthesis": {"mode": "guess"}},
            "synthesis: mode must be one of one_shot, tree, refine, quote, got 'guess'",
        ),
        ({"synthesis": {"fan_in": 1}}, "synthesis: fan_in=1 is less than 2"),
        ({"synthesis": {"prompt": "none"}}, "synthesis: there is no prompt 'none'"),
        ({"synthesis": {"prompt": "{question}"}}, "synthesis: a prompt does not use {context}"),
        ({"synthesis": {"combine_prompt": "{draft}"}}, "synthesis: a prompt has '{draft}'"),
        ({"indexing": {"overlap": 256}}, "indexing: overlap=256 is not less than tokens=256"),
        ({"indexing": {"tokens": 30}}, "indexing: overlap=30 is not less than tokens=30"),
        ({"indexing": {"overlap": -1}}, "indexing: overlap=-1 is less than 0"),
    ],
)
def test_configuration_that_does_not_fit_is_refused(
    configuration: Mapping[str, Mapping[str, object]], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        naive_rag().lower(configuration)
    assert str(caught.value).startswith(message)


def test_settings_keep_the_type_of_their_default() -> None:
    a = step("a", QUESTION, share=1, flag=True, word="x", anything="anything")
    assert (a.config.share, a.config.flag, a.config.anything) == (1, True, "anything")
    for wrong in ({"share": True}, {"flag": 1}, {"word": 5}, {"number": "1"}, {"share": "0.5"}):
        with pytest.raises(ConfigError):
            step("a", QUESTION, **wrong)


def test_a_queries_configuration_changes_that_query_alone() -> None:
    app = naive_rag()
    before = app.lower({})
    changed = app.lower({"searching": {"top_k": 5}})
    assert changed.by_name["hits"].setting("k") == 5
    assert app.lower({}) == before


def test_out_ports_are_sources_and_builders_name_apart() -> None:
    a = step("a", QUESTION)
    assert isinstance(a["text"], OutPort)
    build = Builder()
    build.reserve("x")
    refs = [build.add("x", "call", (Arg("q", Ref("q")),), engine="calls") for _ in range(2)]
    assert refs == [Ref("x.2"), Ref("x.3")]
    assert QueryExpansion(question=QUESTION).name == "query_expansion"


def test_a_plan_is_found_once_it_was_made() -> None:
    plans, app = PlanCache({}), naive_rag()
    settings = {"synthesis": {"mode": "refine"}}
    assert plans.find(app, settings, ()) is None
    made = plans.plan(app, settings, ())
    assert plans.find(app, settings, ()) is made
    assert plans.find(app, {}, ()) is None
    with pytest.raises(ConfigError, match="is not a plain value"):
        plans.find(app, {"synthesis": {"mode": []}}, ())
