"""Depths, fusions and streamed outputs of the execution graph."""

from __future__ import annotations

import pytest
from support.graphs import ADVANCED_RAG, OPTIMISED_RAG

from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph, StreamedOutput, rebase
from stretto.graph.text import parse_graph
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode


def compiled(text: str, **profiles: Profile) -> ExecutionGraph:
    return compile_graph(parse_graph(text), profiles)


def fusions(egraph: ExecutionGraph) -> dict[str, str]:
    pairs = {node.name: egraph.nodes[node.fused].name for node in egraph.nodes if node.fused is not None}
    back = {
        egraph.nodes[node.fused_into].name: node.name for node in egraph.nodes if node.fused_into is not None
    }
    assert pairs == back
    return pairs


def test_depth_is_the_longest_way_to_the_end() -> None:
    depths = {node.name: node.depth for node in compiled(OPTIMISED_RAG).nodes}
    assert depths["answer"] == 0
    assert depths["a3"] == 1
    assert depths["kv3"] == 2
    assert depths["kv3.2"] == depths["a2"] == 3
    assert depths["kv2"] == 4
    assert depths["kv2.1"] == 6, "through kv2.2, not kv3.2"
    assert depths["kv1"] == 6
    assert depths["kv1.1"] == 7
    assert depths["top"] == 7
    assert depths["hits"] == 9
    assert depths["indexed"] == 10
    assert depths["qvectors"] == 10
    assert depths["kv0"] == depths["chunks"] == 12


def test_siblings_have_the_same_depth() -> None:
    egraph = compiled(
        """
        graph g(%q: text)
          %a = web_search(%q) : list[hit] @web
          %b = web_search(%q) : list[hit] @web
          %c = aggregate(%a, %b) {best=1} : list[hit]
          return %c
        """
    )
    assert [node.depth for node in egraph.nodes] == [1, 1, 0]


def test_order_counts_as_depth_even_where_it_points_backward() -> None:
    egraph = compiled(
        """
        graph g(%q: text)
          %a = web_search(%q) : any @w
          %b = web_search(%q) : any @w
          order b > a
          return %a, %b
        """
    )
    assert [(node.depth, node.num_blocking) for node in egraph.nodes] == [(0, 2), (1, 1)]
    assert egraph.followers == ((), (0,))


def test_hints_block_nothing_and_are_known_for_what_they_are() -> None:
    """Only `one` and `two` are hints and nothing else; `three` is an output."""
    egraph = compiled(
        """
        graph g(%q: text, %k: kv)
          %one   = prefill([c"A "]) : kv @llm
          %two   = prefill([c"A ", %q], hint=%one) : kv @llm
          %three = prefill([c"A ", %q, c"!"], hint=%two) : kv @llm
          %four  = prefill([c"A ", %q, c"?"], hint=%three) : kv @llm
          %five  = prefill([c"B "], hint=%k) : kv @llm
          return %three, %four, %five
        """
    )
    assert [node.num_blocking for node in egraph.nodes] == [0, 1, 1, 1, 0]
    assert [node.hints for node in egraph.nodes] == [(1,), (2,), (), (), ()]
    assert [node.hint_from for node in egraph.nodes] == [(), (0,), (1, 0), (2, 1, 0), ()]
    moved = rebase(egraph, 10, range(20, 40))
    assert [node.hints for node in moved] == [(11,), (12,), (), (), ()]
    assert [node.hint_from for node in moved] == [(), (10,), (11, 10), (12, 11, 10), ()]


def test_paths_are_in_seconds_of_the_profiles() -> None:
    egraph = compiled(
        """
        graph g(%q: text, %kv: kv)
          %qs = decode(%kv) {items="json_list", max_tokens=10} : list[text] @llm
          %vs = embed(each %qs) : list[vector] @embedding
          %v = embed(%q) : vector @embedding
          %a = decode(%kv) : text @unknown
          return %vs
        """,
        llm=Profile(per_output_s=0.5),
        embedding=Profile(1.0, 0.1, max_efficient_batch=10),
    )
    assert [node.path_s for node in egraph.nodes] == [pytest.approx(s) for s in (7.0, 2.0, 1.1, 0.0)]


def test_prefill_and_its_only_decode_are_one_request() -> None:
    egraph = compiled(ADVANCED_RAG)
    assert fusions(egraph) == {"kv0": "queries", "kv1": "a1", "kv2": "a2", "kv3": "a3"}
    assert fusions(compiled(OPTIMISED_RAG)) == fusions(egraph)


def test_mapped_pairs_are_fused_and_streams_do_not_matter_to_them() -> None:
    egraph = compiled(
        """
        graph g(%xs: list[text])
          %kvs = prefill([c"a ", each~3 %xs]) : list[kv] @llm
          %as = decode(each~4 %kvs) : list[text] @llm
          return %as
        """
    )
    assert fusions(egraph) == {"kvs": "as"}
    assert [node.num_blocking for node in egraph.nodes] == [0, 1]


@pytest.mark.parametrize(
    "lines",
    [
        "%a = decode(%kv) : text @llm\n%b = decode(%kv) : text @llm",
        '%a = decode(%kv) : text @llm\n%k2 = prefill([c"a ", %q, %q], hint=%kv) : kv @llm',
        "%a = decode(%kv) : text @llm\nreturn %kv",
        "%a = decode(%kv) : text @other",
        "%a = decode(%kv, when=%q) : text @llm",
        "%c = condition(%q) : text\n%a = decode(%kv) : text @llm\norder c > a",
        "%a = decode(%kvs[0]) : text @llm",
        "%x = select(%kv) : kv\n%a = decode(%x) : text @llm",
    ],
    ids=["two readers", "hint", "output", "engine", "guard", "order", "item", "select"],
)
def test_a_decode_that_waits_for_more_or_is_not_alone_is_its_own_request(lines: str) -> None:
    egraph = compiled(
        "graph g(%q: text, %qs: list[text])\n"
        '%kv = prefill([c"a ", %q]) : kv @llm\n'
        '%kvs = prefill([c"b ", each %qs]) : list[kv] @llm\n' + lines
    )
    assert fusions(egraph) == {}


def test_order_between_the_two_does_not_part_them() -> None:
    egraph = compiled(
        'graph g(%q: text)\n%kv = prefill([c"a ", %q]) : kv @llm\n%a = decode(%kv) : text @llm\norder kv > a'
    )
    assert fusions(egraph) == {"kv": "a"}


def test_decode_settings_are_read() -> None:
    egraph = compiled(
        'graph g(%kv: kv)\n%a = decode(%kv) {max_tokens=7, stop=["x", "y"], seed=3} : text @llm'
    )
    assert egraph.nodes[0].decode == Decode(7, stop=("x", "y"), seed=3)


def test_an_unknown_decode_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="step 'a': decoding has no setting 'max_token'"):
        compiled("graph g(%kv: kv)\n%a = decode(%kv) {max_token=7} : text @llm")


def test_a_call_whose_result_is_an_effect_is_one() -> None:
    egraph = compiled('graph g(%x: text)\n!s = call(x=%x) {function="f", result="effect"} : effect @calls')
    assert egraph.nodes[0].is_effect


def streamed(text: str) -> dict[str, tuple[StreamedOutput, ...]]:
    egraph = compiled(text)
    return {egraph.nodes[node].name: outputs for node, outputs in egraph.streamed.items()}


def test_text_streams_once_what_select_prefers_is_known_to_be_absent() -> None:
    egraph = compiled(ADVANCED_RAG)
    a1, a2, a3 = (
        next(node.outs[0] for node in egraph.nodes if node.name == name) for name in ("a1", "a2", "a3")
    )
    assert streamed(ADVANCED_RAG) == {
        "a3": (StreamedOutput("answer", ()),),
        "a2": (StreamedOutput("answer", (a3,)),),
        "a1": (StreamedOutput("answer", (a3, a2)),),
    }
    assert len({a1, a2, a3}) == 3


def test_what_may_not_become_the_output_does_not_stream() -> None:
    """Lists, items, mapped decodes, and what a guarded select may drop; the guard itself above all."""
    assert (
        streamed(
            """
            graph g(%kv: kv, %kvs: list[kv])
              %list = decode(%kv) {items="json_list"} : list[text] @llm
              %texts = decode(each %kvs) : list[text] @llm
              %a = decode(%kv) : text @llm
              %guard = decode(%kv) {max_tokens=2} : text @llm
              %s = select(when=%guard, %a) : text
              %t = select(%texts[0], %texts[1]) : text
              return %list, %texts, %s, %t
            """
        )
        == {}
    )


def test_rebased_nodes_lie_above_the_place_they_are_spliced_into() -> None:
    text = """
        graph g(%q: text)
          %a = web_search(%q) : any @w
          %b = embed(%q, when=%a) : any @e
          order a > b
          return %b
        """
    egraph = compiled(text, w=Profile(1.0), e=Profile(2.0))
    splice = compiled(
        "graph g(%kv: kv)\n%x = decode(%kv) {max_tokens=5} : text @l", l=Profile(per_output_s=1.0)
    )
    a, b = rebase(egraph, 10, range(20, 40), splice.nodes[0])
    assert (a.id, a.outs, a.ins[0].value, a.depth, a.path_s) == (10, (21,), 20, 1, 8.0)
    assert (b.id, b.outs, b.after, b.depth, b.path_s) == (11, (22,), (10,), 0, 7.0)
