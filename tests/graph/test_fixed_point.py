"""Passes run until nothing changes, whoever wrote them and in whatever order they stand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.apps.vocabulary import DEFAULT
from stretto.graph.graph import Graph, Primitive, Ref
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Pass, Profiles
from stretto.graph.passes.pipeline import PASSES, optimise, run_passes
from stretto.graph.text import parse_graph, print_graph
from stretto.model.errors import GraphError

EMBED = """
    graph g(%xs: list[text])
      %v = embed(each %xs) : list[vector] @e
      return %v
    """


def promise(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """A pass that makes embeddings batchable, which `split_stages` then uses."""
    primitives = tuple(replace(p, hints=("batchable",)) if p.op == "embed" else p for p in graph)
    return replace(graph, primitives=primitives)  # equal where there is nothing to do, and never the same


def promise_none(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """A pass that changes nothing."""
    return graph


def hinting(hint: str, *, instead_of: str) -> Pass:
    """A pass that replaces one hint by another."""

    def run(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
        primitives = tuple(
            replace(p, hints=tuple(hint if own == instead_of else own for own in p.hints)) for p in graph
        )
        return replace(graph, primitives=primitives)

    return run


def marked(hint: str) -> Graph:
    graph = parse_graph(EMBED)
    return replace(graph, primitives=(replace(graph.primitives[0], hints=(hint,)),))


def test_a_pass_may_make_work_for_an_earlier_one() -> None:
    passes = DEFAULT.with_pass("promise", promise).passes
    assert tuple(passes)[-1] == "promise"
    found = optimise(parse_graph(EMBED), {}, passes)
    assert "embed(each~" in print_graph(found)
    assert optimise(found, {}, passes) is found
    assert "embed(each %xs)" in print_graph(optimise(parse_graph(EMBED), {}, PASSES))


def test_a_pass_that_does_one_thing_at_a_time_is_run_as_often_as_it_takes() -> None:
    lines = "".join(f"  %s{n} = select(%q) : text\n" for n in range(30))
    graph = parse_graph(f"graph g(%q: text)\n{lines}  return %q")

    def drop_one(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
        return replace(graph, primitives=graph.primitives[1:]) if graph.primitives else graph

    assert optimise(graph, {}, {"drop_one": drop_one}).primitives == ()


def test_passes_that_change_nothing_are_run_once() -> None:
    graph = parse_graph(EMBED)
    assert [name for name, _ in run_passes(graph, {}, PASSES)] == list(PASSES)
    assert optimise(graph, {}, PASSES) is graph
    assert optimise(graph, {}, {}) is graph


def test_passes_stop_when_each_has_run_since_the_last_change() -> None:
    graph = marked("a")
    passes = {"late": hinting("c", instead_of="b"), "early": hinting("b", instead_of="a"), "no": promise_none}
    names = [name for name, _ in run_passes(graph, {}, passes)]
    assert names == ["late", "early", "no", "late", "early", "no", "late"]
    assert optimise(graph, {}, passes).primitives[0].hints == ("c",)


@pytest.mark.parametrize("others", [{}, dict(PASSES)])
def test_two_passes_that_undo_each_other_are_named(others: dict[str, Pass]) -> None:
    there, back = hinting("b", instead_of="a"), hinting("a", instead_of="b")
    with pytest.raises(GraphError, match=r"^there and back change g back and forth"):
        optimise(marked("a"), {}, {"there": there, **others, "back": back})
    with pytest.raises(GraphError, match=r"^back and there change g back and forth"):
        optimise(marked("a"), {}, {**others, "back": back, "there": there})


def test_passes_that_go_round_in_several_sweeps_are_named_without_those_that_do_not() -> None:
    passes = {
        "first": hinting("a", instead_of="start"),
        "c_to_a": hinting("a", instead_of="c"),
        "b_to_c": hinting("c", instead_of="b"),
        "a_to_b": hinting("b", instead_of="a"),
    }
    with pytest.raises(GraphError, match=r"^c_to_a and b_to_c and a_to_b change g back and forth"):
        optimise(marked("start"), {}, passes)


def test_a_pass_that_never_ends_is_named() -> None:
    def grow(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
        name = graph.fresh_name("more")
        more = Primitive(name, "select", ())
        return replace(graph, primitives=(*graph.primitives, more))

    with pytest.raises(GraphError, match=r"^after 100 sweeps g is still changed by grow$"):
        optimise(parse_graph(EMBED), {}, {"promise": promise, "grow": grow})


def test_a_pass_that_breaks_the_graph_in_a_later_sweep_is_named() -> None:
    def break_marked(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
        if not any(p.hints for p in graph):
            return graph
        return replace(graph, outputs=(("v", Ref("nothing")),))

    passes = {"break_marked": break_marked, "promise": promise}
    with pytest.raises(GraphError, match=r"^pass break_marked: output 'v' is %nothing"):
        optimise(parse_graph(EMBED), {}, passes, OPS)
