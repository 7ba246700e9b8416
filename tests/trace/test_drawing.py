"""Graphs as SVG, and the layout beneath."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
from support.worked_example import e_graph, p_graph

from stretto.graph.compile import compile_graph
from stretto.graph.graph import Graph
from stretto.graph.text import parse_graph
from stretto.trace.drawing import draw_graph
from stretto.trace.layout import Edge, lay_out

_SVG = "{http://www.w3.org/2000/svg}"


def _texts(svg: str, kind: str) -> list[str]:
    return [
        e.text or ""
        for e in ElementTree.fromstring(svg).iter(f"{_SVG}text")
        if kind in (e.get("class") or "")
    ]


def _num_edges(svg: str, kind: str) -> int:
    root = ElementTree.fromstring(svg)
    body = root.findall(f"{_SVG}g")[0]
    return sum(kind in (e.get("class") or "").split() for e in body.iter(f"{_SVG}path"))


def test_every_primitive_input_and_output_is_drawn_once() -> None:
    graph = e_graph()
    svg = draw_graph(graph)
    assert sorted(_texts(svg, "name")) == sorted(primitive.name for primitive in graph)
    assert {"question", "files", "return answer"} <= set(_texts(svg, "small"))


def test_kinds_of_edges_are_told_apart() -> None:
    before, after = draw_graph(p_graph()), draw_graph(e_graph())
    assert _num_edges(before, "order") > 0 == _num_edges(after, "order")
    assert _num_edges(after, "stream") > 0 == _num_edges(before, "stream")
    assert all(_num_edges(after, kind) for kind in ("data", "kv", "effect"))
    labels = _texts(after, "label")
    assert labels.count("~128") == 3
    assert labels.count("~1") == 3
    assert {"[0]", "[1]", "[2]"} <= set(labels)


def test_a_split_prefill_shows_only_what_it_computes() -> None:
    shown = _texts(draw_graph(e_graph()), "small")
    assert "“…” question “…”" in shown
    assert "top[0] “…”" in shown
    assert "a1 “…”" in shown


def test_an_order_edge_beside_a_value_is_not_drawn() -> None:
    graph = parse_graph("""
        graph g(%t: text)
          %kv = prefill([%t]) : kv @llm
          %a  = decode(%kv) : text @llm
          order kv > a
          return a=%a
    """)
    assert _num_edges(draw_graph(graph), "order") == 0


def test_names_are_escaped() -> None:
    graph = parse_graph("""
        graph g(%t: text)
          %kv = prefill([c"</title><script>alert(1)</script>", %t]) : kv @llm
          %a  = decode(%kv) : text @llm
          return a=%a
    """)
    root = ElementTree.fromstring(draw_graph(graph))
    assert not list(root.iter(f"{_SVG}script"))


def test_a_drawing_is_the_same_every_time_and_of_either_graph() -> None:
    graph = e_graph()
    assert draw_graph(graph) == draw_graph(compile_graph(graph, {}))


def test_an_empty_graph_is_a_drawing() -> None:
    ElementTree.fromstring(draw_graph(Graph("g", (), (), (), ())))


@st.composite
def _dags(draw: st.DrawFn) -> tuple[list[str], list[Edge]]:
    names = [f"n{i}" for i in range(draw(st.integers(1, 14)))]
    pairs = list(combinations(names, 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=24, unique=True)) if pairs else []
    return names, [Edge(a, b, draw(st.sampled_from(["x", "y"]))) for a, b in chosen]


@settings(max_examples=60, deadline=None)
@given(_dags())
def test_boxes_never_overlap_and_edges_run_from_left_to_right(dag: tuple[list[str], list[Edge]]) -> None:
    names, edges = dag
    layout = lay_out({name: (80.0 + 5 * i, 40.0 + i) for i, name in enumerate(names)}, edges)
    for a, b in combinations(layout.boxes.values(), 2):
        apart_x = a.x + a.width <= b.x or b.x + b.width <= a.x
        assert apart_x or abs(a.y - b.y) >= (a.height + b.height) / 2
    for box in layout.boxes.values():
        assert box.x >= 0
        assert box.y - box.height / 2 >= -1e-6
        assert box.x + box.width <= layout.width + 1e-6
        assert box.y + box.height / 2 <= layout.height + 1e-6
    for edge, route in zip(edges, layout.routes, strict=True):
        xs = [x for x, _ in route]
        assert xs == sorted(xs)
        tail, head = layout.boxes[edge.tail], layout.boxes[edge.head]
        assert xs[0] == tail.x + tail.width
        assert xs[-1] == head.x
        assert abs(route[-1][1] - head.y) <= head.height / 2
