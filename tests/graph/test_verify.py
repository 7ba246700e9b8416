"""Every refusal names the primitive and the port."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.graph.graph import Arg, Constant, Graph, Primitive, Ref
from stretto.graph.text import parse_graph
from stretto.graph.types import accepts, is_promptable, is_type
from stretto.graph.verify import sort_topologically, verify
from stretto.model.errors import GraphError

HEAD = (
    "graph g(%q: text, %files: list[document], %texts: list[text], %others: list[text], %n: number, "
    "%v: vector, %vs: list[vector], %kv: kv, %union: text|chunk)\n"
)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("%x = rerank(%q) : any @r", "%x: port 'hits' is not fed"),
        ("%x = decode() : text @llm", "%x: port 'kv' is not fed"),
        ("%x = embed(%n) : vector @e", "%x: port 'texts' takes text|chunk|hit, %n is number"),
        ("%x = embed(each %vs) : vector @e", "%x: port 'texts' takes text|chunk|hit, %vs is vector"),
        ("%x = embed(%texts) : vector @e", "%x: port 'texts' takes text|chunk|hit, %texts is list[text]"),
        ("%x = rerank(%union, %q) : any @r", "%x: port 'question' takes text, %union is text|chunk"),
        ("%x = embed(%q, other=%q) : vector @e", "%x: embed has no port 'other'"),
        ("%x = embed(%q, texts=%q) : vector @e", "%x: port 'texts' is fed twice"),
        ("%x = embed(each %q) : vector @e", "%x: port 'texts' cannot take each of %q: text"),
        ("%x = embed(each %texts[0]) : vector @e", "%x: port 'texts' cannot take each of %texts[0]: text"),
        ("%x = embed(%q[0]) : vector @e", "%x: port 'texts' reads %q[0], which nothing produces"),
        ("%x = embed(%nowhere) : vector @e", "%x: port 'texts' reads %nowhere, which nothing produces"),
        ("%x = embed(each~0 %texts) : vector @e", "%x: port 'texts' has the piece size 0"),
        ("%x = embed(%q) : vector", "%x: embed needs an engine"),
        ("%x = select(%q) : text @e", "%x: select runs on no engine"),
        ("%x = select(each %texts) : text", "%x: port 'texts' cannot take each of %texts: list[text]"),
        ("%x = aggregate(each %texts) : text", "%x: port 'texts' cannot take each of %texts: list[text]"),
        ("%x = condition(each %texts) : text", "%x: port 'value' cannot take each of %texts: list[text]"),
        ("%x = expand(each %texts) : any", "%x: port 'texts' cannot take each of %texts: list[text]"),
        (
            "%x = call(a=each %texts, b=each %others) : any @c",
            "%x: port 'b' zips %others with a stream of different origin (%others and %texts)",
        ),
        ("%x = embed(%q, when=each %texts) : vector @e", "%x: a guard takes a whole value"),
        ("%x = prefill([], hint=%kv) : kv @llm", "%x: an empty prompt"),
        ('%x = prefill([c"Hi"], %q) : kv @llm', "%x: port 'q' is not used in the prompt"),
        ("%x = prefill([%v]) : kv @llm", "%x: port 'v': a vector cannot stand in a prompt"),
        ("%x = prefill([each %files]) : kv @llm", "%x: port 'files': a document cannot stand in a prompt"),
        ("%x = prefill([when=%q]) : kv @llm", "%x: 'when' is no variable of a prompt"),
        ("%x = prefill([hint=%kv]) : kv @llm", "%x: 'hint' is no variable of a prompt"),
        ('%x = call(%q) {result="texts"} : any @c', "%x: its result has the unknown type 'texts'"),
        ("%q = select(%q) : text", "%q is defined twice"),
        ("%x = select(%q) : text\n%x = select(%q) : text", "two primitives of g have the same name"),
        ("%x.no = select(%q) : text\n%x = condition(%q) : text", "%x.no is both a value of %x and a name"),
        ("%x = select(%y) : text\n%y = select(%q) : text", "nothing produces (a cycle, or out of order)"),
        ("%x = select(%q) : text\norder x > y", "order names %y, which is no primitive"),
        ("%x = select(%q) : text\norder x > x", "a cycle through %x"),
        (
            "%x = select(%q) : text\n%y = select(%x) : text\n%z = select(%q) : text\norder y > x",
            "a cycle through %x, %y",
        ),
        ("return %nothing", "output 'nothing' is %nothing, which nothing produces"),
        ("return x=%q[1]", "output 'x' is %q[1], which nothing produces"),
        ("return x=%q, x=%n", "two outputs of g have the same name"),
    ],
)
def test_a_graph_that_is_none(lines: str, complaint: str) -> None:
    with pytest.raises(GraphError) as raised:
        parse_graph(HEAD + lines)
    assert complaint in raised.value.message


def test_inputs_are_checked() -> None:
    with pytest.raises(GraphError, match="input %a is declared twice"):
        parse_graph("graph g(%a: text, %a: text)")
    with pytest.raises(GraphError, match="input %a has the unknown type 'list\\[texts\\]'"):
        parse_graph("graph g(%a: list[texts])")


def test_what_has_no_text_form_is_checked_too() -> None:
    plain = parse_graph(HEAD + "%x = embed(each %texts) : vector @e")
    (embed,) = plain.primitives
    piece = replace(embed, args=(Arg("texts", Ref("q"), piece=3),))
    with pytest.raises(GraphError, match="%x: port 'texts' takes all of %q and cannot stream it"):
        verify(replace(plain, primitives=(piece,)))
    with pytest.raises(GraphError, match="%x: embed takes no prompt"):
        verify(replace(plain, primitives=(replace(embed, prompt=(Constant("a"),)),)))
    with pytest.raises(GraphError, match="%x: there is no op 'embroider'"):
        verify(replace(plain, primitives=(replace(embed, op="embroider"),)))
    with pytest.raises(GraphError, match="%x is late, and no input"):
        verify(replace(plain, late=frozenset({"x"})))


def test_streams_of_one_origin_zip_and_scalars_broadcast() -> None:
    graph = parse_graph(
        HEAD
        + """
        %vectors = embed(each %texts) : any @e
        %both    = call(each %texts, each %vectors, %q) {result="text"} : any @c
        %again   = call(each~2 %both, each %vectors) : any @c
        """
    )
    types = verify(graph)
    assert types["vectors", ""] == "list[vector]"
    assert types["both", ""] == "list[text]"
    assert types["again", ""] == "list[any]"


def test_a_guard_does_not_count_as_an_argument_of_the_type() -> None:
    types = verify(parse_graph(HEAD + "%x = select(when=%n, %q) : text\n%y = aggregate(when=%n, %q) : any"))
    assert types["x", ""] == "text"
    assert types["y", ""] == "list[text]"


def test_an_order_edge_may_point_backward_if_it_closes_no_cycle() -> None:
    graph = parse_graph(
        HEAD
        + "%a = select(%q) : text\n%b = select(%q) : text\n%c = select(%q) : text\norder c > a\norder a > b"
    )
    assert [p.name for p in sort_topologically(graph)] == ["c", "a", "b"]


def test_sorting_keeps_the_order_where_it_can() -> None:
    names = [Primitive(n, "select", (Arg("x", Ref(r)),)) for n, r in (("a", "q"), ("b", "a"), ("c", "q"))]
    graph = Graph("g", (("q", "text"),), tuple(names), (), ())
    assert sort_topologically(graph) == graph
    backward = replace(graph, primitives=tuple(names[::-1]))
    assert [primitive.name for primitive in sort_topologically(backward)] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("wanted", "given", "fits"),
    [
        ("any", "kv", True),
        ("text", "any", True),
        ("text|chunk", "chunk", True),
        ("text|chunk|hit", "text|chunk", True),
        ("text", "text|chunk", False),
        ("list[text|chunk]", "list[chunk]", True),
        ("list[chunk]", "list[text|chunk]", False),
        ("list[any]", "list[list[hit]]", True),
        ("list[hit]", "any", True),
        ("list[hit]", "hit", False),
        ("hit", "list[hit]", False),
    ],
)
def test_types_fit(wanted: str, given: str, fits: bool) -> None:
    assert accepts(wanted, given) is fits


def test_types_are_well_formed() -> None:
    assert all(map(is_type, ("any", "list[list[hit]]", "text|chunk", "list[text|chunk]")))
    assert not any(map(is_type, ("", "texts", "list[]", "list[text", "text|", "tuple[text]")))
    assert is_promptable("list[list[hit]]")
    assert not is_promptable("list[vector]")
