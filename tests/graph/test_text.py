"""The text form says all there is about a graph, and parses back."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.graphs import ADVANCED_RAG, OPTIMISED_RAG
from support.random_apps import App, apps

from stretto.graph.graph import Arg, Constant, Graph, Primitive, Ref, Slot, config_items
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.text import parse_graph, print_graph
from stretto.model.errors import GraphError

quickly = settings(
    max_examples=50, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("text", [ADVANCED_RAG, OPTIMISED_RAG], ids=["plain", "optimised"])
def test_print_is_the_inverse_of_parse(text: str) -> None:
    assert print_graph(parse_graph(text)) == text


@given(apps())
@quickly
def test_parse_is_the_inverse_of_print(app: App) -> None:
    assert parse_graph(print_graph(app.graph)) == app.graph


@given(apps())
@quickly
def test_optimised_graphs_parse_back(app: App) -> None:
    graph = optimise(app.graph, {}, PASSES)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


@given(st.text(), st.text())
@example('"], hint=%kv)', "\u2028\x85\n\r\x1c\\")
@quickly
def test_any_string_may_stand_in_a_constant_or_a_setting(constant: str, setting: str) -> None:
    prompt = (Constant(constant), Slot("q"), Constant(setting))
    kv = Primitive("kv", "prefill", (Arg("q", Ref("q")),), prompt, (), "llm")
    config = config_items({"stop": [setting, constant], "name": setting})
    answer = Primitive("a", "decode", (Arg("kv", Ref("kv")),), (), config, "llm")
    graph = Graph("g", (("q", "text"),), (kv, answer), (), (("a", Ref("a")),))
    assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize(
    "line",
    [
        '%kv = prefill([c"See ", %q], hint=%old) : kv @llm',
        '%kv = prefill([c"See ", question=%q, c", ", %list[3]], hint=%old, when=%c.yes) : kv @llm',
        '%kv = prefill([%q, c" ", %q]) : kv @llm',
        '%kv = prefill([system"Be brief.", user"", %q, assistant"Well,"]) : kv @llm',
        '%x = call(%q) {result="text"} : text @cpu',
        '%x = call(inputs=%q) {result="text"} : text @cpu',
        "%x = select(options=%q) : text",
        "%x = select(%q, when=%c.no) : text",
        "%x = search(%v, collection=%q) : list[hit] @vectors",
        "%x = search(%v, when=%when) : list[hit] @vectors",
        '%x = search(each~7 %vs) {k=3, name="a, b=} : c", parts=[1, 2.5, true, "x"]} : list[list[hit]] @v',
        "%x = rerank(hits=each %hs, question=%q) : list[list[hit]] @rerank #batchable #fast",
        "%x = aggregate(%c.yes, again=%q) : list[text]",
    ],
)
def test_every_way_to_write_a_line(line: str) -> None:
    text = (
        "graph g(%q: text, %list: list[text], %v: vector, %vs: list[vector], %hs: list[list[hit]], "
        f"%old: kv, %when: text)\n  %c{' ' * (line.index('=') - 2)}= condition(%q) : text\n  {line}\n"
    )
    assert print_graph(parse_graph(text)) == text


def test_a_dotted_name_is_not_a_port() -> None:
    lines = ("graph g(%q: text)", "  %a.1 = select(%q) : text", "  %b   = condition(%a.1) : text")
    text = "\n".join([*lines, "  return x=%b.no, %a.1", ""])
    graph = parse_graph(text)
    assert graph.outputs == (("x", Ref("b", "no")), ("a.1", Ref("a.1")))
    assert print_graph(graph) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a graph: empty"),
        ("grape g()", "not a graph: grape g()"),
        ("graph g()\n%a = frobnicate()", "there is no op 'frobnicate'"),
        ("graph g(%q: text)\nwhat is this", "cannot parse: what is this"),
        ("graph g(%q: text)\n%a = select(q) : text", "cannot parse the arguments"),
        ("graph g(%q: text)\n%a = select(%q)", "cannot parse the end"),
        ("graph g(%q: text)\n%a = embed(%q) {x} : vector @e", "cannot parse the settings"),
        ("graph g(%q: text)\n%a = embed(%q) {x=y} : vector @e", "cannot parse the settings"),
        ('graph g(%q: text)\n%a = prefill([c"open) : kv @e', "an unfinished constant"),
        ("graph g(%q: text)\n%a = prefill([q]) : kv @e", "cannot parse the prompt"),
        ("graph g(%q: text)\nreturn q", "cannot parse 'q'"),
    ],
)
def test_what_does_not_parse_is_quoted(text: str, complaint: str) -> None:
    with pytest.raises(GraphError) as raised:
        parse_graph(text)
    assert complaint in str(raised.value)
