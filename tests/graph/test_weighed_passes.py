"""Passes are left out where they are predicted to cost more than they save."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stretto.apps import advanced_rag, naive_rag, search_empowered
from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Template
from stretto.apps.vocabulary import DEFAULT
from stretto.graph.graph import Graph
from stretto.graph.op_table import OPS
from stretto.graph.passes.base import Conditions, rounded_load
from stretto.graph.passes.parts import cut
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.passes.predict import Prediction, predict
from stretto.graph.passes.steps import Steps
from stretto.graph.passes.weigh import WEIGHED, Verdict, weigh
from stretto.graph.text import parse_graph, print_graph
from stretto.model.errors import ConfigError, GraphError
from stretto.model.profile import Profile

LLM = Profile(0.004, 0.00013, 1, per_output_s=0.004)
PROFILES = {
    "chunking": Profile(0.0002, 0.002, 1),
    "embedding": Profile(0.004, 0.013, 16),
    "vectors": Profile(0.0002, 0.00001, 256),
    "reranking": Profile(0.0002, 0.0002, 64),
    "web": Profile(0.3, 0.0, 8),
    "llm": LLM,
    "llm_small": LLM,
}
ALONE = Conditions(PROFILES)
CROWDED = Conditions(PROFILES, num_others=8)


def verdicts(template: Template, conditions: Conditions) -> Mapping[str, Verdict]:
    return {verdict.name: verdict for verdict in weigh(template.lower({}), conditions, PASSES)[1]}


def predicted(text: str, conditions: Conditions) -> Prediction:
    return predict(parse_graph(text), Steps(conditions, OPS))


def test_a_prefill_ahead_pays_while_the_llm_waits_for_documents() -> None:
    verdict = verdicts(naive_rag(), ALONE)["split_prefill"]
    assert verdict.is_kept
    assert verdict.saves_s is not None
    assert verdict.saves_s > 0.02
    assert "saves" in verdict.reason


def test_further_requests_are_left_out_while_others_would_wait_for_them() -> None:
    assert verdicts(search_empowered(), ALONE)["split_prefill"].is_kept
    crowded = verdicts(search_empowered(), CROWDED)["split_prefill"]
    assert not crowded.is_kept
    assert crowded.costs_s == pytest.approx(8 * 2 * LLM.base_s)


def test_items_are_not_handed_on_where_engines_share_one_core() -> None:
    quick = {**PROFILES, "embedding": Profile(0.004, 0.004, 16)}
    cores = dict.fromkeys(PROFILES, 1)
    apart, together = (
        verdicts(advanced_rag(), conditions)["pipeline_decode"].saves_s
        for conditions in (Conditions(quick), Conditions(quick, cores=1, threads=cores))
    )
    assert apart is not None
    assert together is not None
    assert apart > 0.005
    assert together == pytest.approx(0.0)


def test_the_graph_is_that_of_the_passes_that_are_kept() -> None:
    graph = advanced_rag().lower({})
    weighed, found = weigh(graph, CROWDED, PASSES)
    left_out = {verdict.name for verdict in found if not verdict.is_kept}
    assert left_out == {"split_prefill"}
    kept = {name: run for name, run in PASSES.items() if name not in left_out}
    assert weighed == optimise(graph, PROFILES, kept)


def test_a_prefill_beside_a_decode_makes_it_longer() -> None:
    text = """graph g(%a: text, %b: text)
      %k = prefill([%a]) : kv @llm
      %o = decode(%k) {max_tokens=100} : text @llm
      %w = web_search(%b) {k=1} : list[hit] @web
      %l = prefill([%w]) : kv @llm
      return %o, l=%l"""
    seconds = LLM.batch_s(64) + 100 * LLM.per_output_s + LLM.batch_s(64)
    assert predict(parse_graph(text), Steps(ALONE, OPS)).seconds == pytest.approx(seconds)


def test_unknown_profiles_leave_nothing_out() -> None:
    graph = advanced_rag().lower({})
    for profiles in ({}, {**PROFILES, "reranking": Profile()}):
        weighed, found = weigh(graph, Conditions(profiles, num_others=8), PASSES)
        assert weighed == optimise(graph, profiles, PASSES)
        assert all(verdict.is_kept and verdict.saves_s is None for verdict in found)
    assert found[0].reason == "not weighed: the profile of reranking is unknown"


def test_a_pass_of_the_user_is_always_kept() -> None:
    def rename(graph: Graph, profiles: object, ops: object) -> Graph:
        return Graph("renamed", graph.inputs, graph.primitives, graph.order, graph.outputs)

    weighed, found = weigh(naive_rag().lower({}), CROWDED, {**PASSES, "rename": rename})
    assert weighed.name == "renamed"
    assert found[-1] == Verdict("rename", True, "not weighed: it is no pass of Stretto's own")


def test_a_pass_of_the_user_that_breaks_the_graph_is_named() -> None:
    def forget(graph: Graph, profiles: object, ops: object) -> Graph:
        return Graph(graph.name, graph.inputs, graph.primitives[1:], (), graph.outputs)

    with pytest.raises(GraphError, match="pass forget: "):
        weigh(naive_rag().lower({}), ALONE, {"forget": forget, **PASSES})


# --- predictions


def test_steps_that_wait_for_nothing_of_each_other_overlap_unless_they_share_a_core() -> None:
    text = """graph g(%a: text)
      %v = embed(%a) : vector @embedding
      %w = web_search(%a) {k=1} : list[hit] @web
      return %v, w=%w"""
    embed_s, web_s = PROFILES["embedding"].batch_s(1), PROFILES["web"].batch_s(1)
    assert predicted(text, ALONE).seconds == pytest.approx(max(embed_s, web_s))
    shared = Conditions(PROFILES, cores=1, threads={"embedding": 1, "web": 1})
    assert predicted(text, shared).seconds == pytest.approx(embed_s + web_s)


def test_what_waits_together_shares_a_batch() -> None:
    text = """graph g(%a: text, %b: text)
      %v = embed(%a) : vector @embedding
      %w = embed(%b) : vector @embedding
      return %v, w=%w"""
    assert predicted(text, ALONE).seconds == pytest.approx(PROFILES["embedding"].batch_s(2))


def test_a_prefill_ahead_leaves_only_the_rest_and_equal_ones_are_computed_once() -> None:
    text = """graph g(%a: text, %b: text)
      %h = prefill([c"constant", %a]) : kv @llm
      %i = prefill([c"constant", %a]) : kv @llm
      %k = prefill([c"constant", %a, %b], hint=%h) : kv @llm
      %o = decode(%k) {max_tokens=10} : text @llm
      return %o"""
    assert predicted(text, ALONE).prefill_s == pytest.approx(2 * LLM.batch_s(64))


def test_pieces_of_a_long_list_move_through_two_engines_at_once() -> None:
    whole = """graph g(%files: list[document])
      %c = chunk(each %files) {overlap=0, tokens=9} : list[chunk] @chunking #batchable
      %v = embed(each %c) : list[vector] @embedding #batchable
      !i = ingest(each %c, each %v) : effect @vectors #batchable
      return i=!i"""
    profiles = {**PROFILES, "vectors": Profile(0.0, 0.013, 16)}
    cut = whole.replace("embed(each %c)", "embed(each~16 %c)").replace(
        "ingest(each %c, each %v)", "ingest(each~16 %c, each~16 %v)"
    )
    whole_s, cut_s = (predicted(text, Conditions(profiles)).seconds for text in (whole, cut))
    assert whole_s - cut_s == pytest.approx(16 * 0.013)


@pytest.mark.parametrize(("queries", "rounded"), [(0, 0), (1, 1), (3, 2), (4, 4), (300, 256)])
def test_few_loads_are_told_apart(queries: int, rounded: int) -> None:
    assert rounded_load(queries) == rounded


# --- plans


def test_plans_are_cached_by_structure_and_load() -> None:
    load = 0
    cache = PlanCache(PROFILES, num_running=lambda: load)
    app = search_empowered()
    alone = cache.plan(app, {}, WEIGHED)
    load = 8
    crowded = cache.plan(app, {}, WEIGHED)
    assert cache.plan(search_empowered(), {}, WEIGHED) is crowded
    assert "split_prefill" in alone.passes
    assert "split_prefill" not in crowded.passes
    assert [verdict.name for verdict in crowded.verdicts if not verdict.is_kept] == ["split_prefill"]
    load = 0
    assert cache.plan(app, {}, WEIGHED) is alone


def test_a_query_is_none_of_the_others_beside_which_its_own_expansions_are_planned() -> None:
    app, running = search_empowered(), 0
    app.outputs = {"answer": app.outputs["answer"]}
    graph = app.lower({})
    vocabulary = DEFAULT.with_expansion("search", lambda inputs: graph)
    cache = PlanCache(PROFILES, vocabulary, num_running=lambda: running)
    alone = cache.plan(app, {}, WEIGHED)
    running = 1
    assert cache.plan(app, {}, WEIGHED) is not alone
    assert cache.plan(app, {}, WEIGHED, is_running=True) is alone
    assert cache.expand("search", {}, WEIGHED) is alone


def test_named_passes_are_forced() -> None:
    cache = PlanCache(PROFILES, num_running=lambda: CROWDED.num_others)
    plan = cache.plan(search_empowered(), {}, DEFAULT.select_passes("all"))
    assert plan.passes == tuple(PASSES)
    assert plan.verdicts == ()
    assert cache.plan(search_empowered(), {}, DEFAULT.select_passes("split_prefill")).passes == (
        "split_prefill",
    )


def test_weighing_is_a_choice_for_whole_queries() -> None:
    assert DEFAULT.select_passes("weighed") == WEIGHED
    assert DEFAULT.select_passes(["weighed"]) == WEIGHED
    with pytest.raises(ConfigError, match="there is no pass 'weighed'"):
        DEFAULT.select_passes("weighed, drop_dead")
    with pytest.raises(ConfigError, match="they are weighed for whole apps"):
        naive_rag().lower({"indexing": {"passes": "weighed"}})


@pytest.mark.parametrize("max_items", [-1, 0, 5, 10**6])
def test_any_limit_of_a_list_can_be_weighed(max_items: int) -> None:
    """Lists without a limit, and with a large one, have an assumed length, so that planning takes no time."""
    queries = advanced_rag().lower({})
    listed = parse_graph(print_graph(queries).replace("max_items=3", f"max_items={max_items}"))
    assert listed != queries
    assert len(cut(optimise(listed, PROFILES, PASSES), Steps(ALONE, OPS))) < 300
    assert weigh(listed, ALONE, PASSES)[1]
