"""The p-graphs of the ready-made apps, in full; and what the plan cache keeps of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.virtual_loop import in_virtual_time

from stretto import DEFAULT, Component, Input, Runtime, Template
from stretto.apps import advanced_rag, naive_rag
from stretto.apps import plan_cache as plan_cache_module
from stretto.apps.components.builder import Builder
from stretto.apps.plan_cache import PlanCache
from stretto.graph.graph import Graph, Ref
from stretto.graph.ops import Port
from stretto.graph.text import parse_graph, print_graph
from stretto.model.errors import ConfigError, GraphError

ALL = DEFAULT.select_passes("all")
SHORT = {
    "prompt": "A {question} {context}",
    "refine_prompt": "R {question} {context} {draft}",
    "combine_prompt": "C {question} {drafts}",
}

TREE = """\
graph naive_rag(%files: list[document], %question: text)
  %chunks          = chunk(each %files) {overlap=30, tokens=256} : list[chunk] @chunking #batchable
  %vectors         = embed(each %chunks) : list[vector] @embedding #batchable
  !indexed         = ingest(each %chunks, each %vectors) : effect @vectors #batchable
  %query_vectors   = embed(%question) : vector @embedding #batchable
  %hits            = search(%query_vectors, !indexed) {k=3} : list[hit] @vectors #batchable
  %leaf1.prompt    = prefill([c"A ", %question, c" ", context=%hits[0]]) : kv @llm
  %leaf1           = decode(%leaf1.prompt) {max_tokens=96} : text @llm
  %leaf2.prompt    = prefill([c"A ", %question, c" ", context=%hits[1]]) : kv @llm
  %leaf2           = decode(%leaf2.prompt) {max_tokens=96} : text @llm
  %leaf3.prompt    = prefill([c"A ", %question, c" ", context=%hits[2]]) : kv @llm
  %leaf3           = decode(%leaf3.prompt) {max_tokens=96} : text @llm
  %leaf4.prompt    = prefill([c"A ", %question, c" ", context=%hits[3]]) : kv @llm
  %leaf4           = decode(%leaf4.prompt) {max_tokens=96} : text @llm
  %leaf5.prompt    = prefill([c"A ", %question, c" ", context=%hits[4]]) : kv @llm
  %leaf5           = decode(%leaf5.prompt) {max_tokens=96} : text @llm
  %drafts          = aggregate(%leaf1, %leaf2) {join="\\n\\n"} : text
  %branch.prompt   = prefill([c"C ", %question, c" ", %drafts]) : kv @llm
  %branch          = decode(%branch.prompt) {max_tokens=96} : text @llm
  %drafts.2        = aggregate(%leaf3, %leaf4) {join="\\n\\n"} : text
  %branch.prompt.2 = prefill([c"C ", %question, c" ", drafts=%drafts.2]) : kv @llm
  %branch.2        = decode(%branch.prompt.2) {max_tokens=96} : text @llm
  %drafts.3        = aggregate(%branch, %branch.2) {join="\\n\\n"} : text
  %branch.prompt.3 = prefill([c"C ", %question, c" ", drafts=%drafts.3]) : kv @llm
  %branch.3        = decode(%branch.prompt.3) {max_tokens=96} : text @llm
  %drafts.4        = aggregate(%branch.3, %leaf5) {join="\\n\\n"} : text
  %answer.prompt   = prefill([c"C ", %question, c" ", drafts=%drafts.4]) : kv @llm
  %answer          = decode(%answer.prompt) {max_tokens=96} : text @llm
  order indexed > query_vectors
  order hits > leaf1.prompt
  order hits > leaf2.prompt
  order hits > leaf3.prompt
  order hits > leaf4.prompt
  order hits > leaf5.prompt
  return %answer, sources=%hits
"""
RETRIEVAL = """\
graph advanced_rag(%files: list[document], %collection: text, %question: text)
  %chunks         = chunk(each %files) {overlap=30, tokens=256} : list[chunk] @chunking #batchable
  %vectors        = embed(each %chunks) : list[vector] @embedding #batchable
  !indexed        = ingest(each %chunks, each %vectors, %collection) : effect @vectors #batchable
  %queries.prompt = prefill([c"List 2: ", %question]) : kv @llm
  %queries        = decode(%queries.prompt) {items="json_list", max_items=2, max_tokens=200} : list[text] @llm #splittable
  %query_vectors  = embed(each %queries) : list[vector] @embedding #batchable
  %hits           = search(each %query_vectors, !indexed, %collection) {k=16} : list[list[hit]] @vectors #batchable
  %scored         = rerank(%question, each %hits) : list[list[hit]] @reranking #batchable
  %top            = aggregate(%scored) {best=3, distinct=true} : list[hit]
"""  # noqa: E501
ORDER = """\
  order indexed > queries.prompt
  order queries > query_vectors
  order hits > scored
"""
REFINE = f"""\
{RETRIEVAL}\
  %draft1.prompt  = prefill([c"A ", %question, c" ", context=%top[0]]) : kv @llm
  %draft1         = decode(%draft1.prompt) {{max_tokens=96}} : text @llm
  %draft2.prompt  = prefill([c"R ", %question, c" ", context=%top[1], c" ", draft=%draft1]) : kv @llm
  %draft2         = decode(%draft2.prompt) {{max_tokens=96}} : text @llm
  %draft3.prompt  = prefill([c"R ", %question, c" ", context=%top[2], c" ", draft=%draft2]) : kv @llm
  %draft3         = decode(%draft3.prompt) {{max_tokens=96}} : text @llm
  %answer         = select(%draft3, %draft2, %draft1) : text
{ORDER}\
  order top > draft1.prompt
  return %answer, sources=%top
"""
ONE_HIT = f"""\
{RETRIEVAL}\
  %draft1.prompt  = prefill([c"A ", %question, c" ", context=%top[0]]) : kv @llm
  %draft1         = decode(%draft1.prompt) {{max_tokens=96}} : text @llm
{ORDER}\
  order top > draft1.prompt
  return answer=%draft1, sources=%top
"""
ONE_SHOT = f"""\
{RETRIEVAL}\
  %context        = aggregate(%top) {{join="\\n\\n"}} : text
  %answer.prompt  = prefill([c"A ", %question, c" ", %context]) : kv @llm
  %answer         = decode(%answer.prompt) {{max_tokens=96}} : text @llm
{ORDER}\
  order top > context
  return %answer, sources=%top
"""


def test_naive_rag_combines_five_answers_two_at_a_time() -> None:
    graph = naive_rag().lower({"synthesis": {"fan_in": 2, "num_hits": 5, **SHORT}})
    assert print_graph(graph) == TREE
    assert parse_graph(TREE) == graph


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, REFINE), ({"num_hits": 1}, ONE_HIT), ({"mode": "one_shot"}, ONE_SHOT)],
)
def test_advanced_rag_refines_or_answers_at_once(settings: dict[str, object], expected: str) -> None:
    configuration = {
        "synthesis": {**SHORT, **settings},
        "query_expansion": {
            "num_queries": 2,
            "prompt": "List {num_queries}: {question}",
            "constrained": False,
            "fallback": False,
        },
    }
    graph = advanced_rag(named_collection=True).lower(configuration)
    assert print_graph(graph) == expected


# --- the plan_cache's memory


def test_the_second_query_of_a_shape_finds_its_plan() -> None:
    plan_cache, app, other = PlanCache({}), naive_rag(), naive_rag()
    plan = plan_cache.plan(app, {}, ALL)
    assert plan_cache.plan(app, {}, ALL) is plan
    assert plan_cache.plan(app, {}, ()) is not plan
    assert plan_cache.plan(other, {}, ALL) is plan  # found by its structure
    five = plan_cache.plan(app, {"searching": {"top_k": 5}}, ALL)
    assert five is not plan
    assert plan_cache.plan(app, {"searching": {"top_k": 5}}, ALL) is five
    assert plan_cache.plan(app, {"searching": {"top_k": 6}}, ALL) is not five


def expansion_to(graph: Graph) -> Callable[[Mapping[str, object]], Graph]:
    return lambda inputs: graph


def test_a_graph_that_is_spliced_is_found_by_its_structure_too() -> None:
    app, lowered = naive_rag(), naive_rag().lower({})
    one_output = replace(lowered, outputs=lowered.outputs[:1])
    flags = {
        value: parse_graph(
            f'graph g(%q: text)\n  %x = call(%q) {{flag={value}, result="text"}} : text @c\n  return %x'
        )
        for value in ("1", "true")
    }
    vocabulary = DEFAULT.with_expansion("rag", lambda inputs: one_output)
    for value, graph in flags.items():
        vocabulary = vocabulary.with_expansion(f"flag_{value}", expansion_to(graph))
    plan_cache = PlanCache({}, vocabulary)
    plan = plan_cache.expand("rag", {}, ALL)
    assert plan_cache.compile(one_output, ALL) is not plan
    assert plan_cache.expand("rag", {"other": 1}, ALL) is plan
    app.outputs = {"answer": app.outputs["answer"]}
    assert plan_cache.plan(app, {}, ALL) is plan
    assert plan_cache.expand("flag_1", {}, ALL) is not plan_cache.expand("flag_true", {}, ALL)


def test_equal_settings_of_other_types_are_other_settings() -> None:
    plan_cache, app = PlanCache({}), naive_rag()
    plan_cache.plan(app, {"searching": {"top_k": 1}}, ALL)
    for wrong in (True, 1.0):
        with pytest.raises(ConfigError, match=f"top_k must be int, got {wrong}"):
            plan_cache.plan(app, {"searching": {"top_k": wrong}}, ALL)


@pytest.mark.parametrize("value", [["a"], {"a": 1}, {1, 2}])
def test_a_setting_that_is_no_plain_value_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="a setting of naive_rag is not a plain value"):
        PlanCache({}).plan(naive_rag(), {"synthesis": {"prompt": value}}, ALL)


def test_a_plan_that_is_refused_is_not_remembered() -> None:
    plan_cache, app = PlanCache({}), naive_rag()
    for _ in range(2):
        with pytest.raises(ConfigError):
            plan_cache.plan(app, {"searching": {"top_k": 0}}, ALL)


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache_module, "_MAX_CACHED", 2)
    plan_cache, app = PlanCache({}), naive_rag()
    first = plan_cache.plan(app, {}, ())
    for k in (5, 6, 7):
        plan_cache.plan(app, {"searching": {"top_k": k}}, ())
    assert len(plan_cache._plans) == 2
    assert plan_cache.plan(app, {}, ()) is not first


def _one_step(inputs: Mapping[str, object]) -> Graph:
    size = len(str(inputs["text"]))
    text = f"graph sub(%text: text)\n  %x = aggregate(%text) {{best={size}}} : list[hit]\n  return %x"
    return parse_graph(text)


def test_expansions_are_remembered_by_the_graph_they_make() -> None:
    vocabulary = (
        DEFAULT.with_expansion("one_step", _one_step)
        .with_expansion("none", lambda inputs: Graph("none", (), (), (), ()))
        .with_expansion("broken", lambda inputs: Graph("broken", (), (), (), (("x", Ref("y")),)))
    )
    with pytest.raises(ConfigError, match="the expansion 'one_step' is there already"):
        vocabulary.with_expansion("one_step", _one_step)
    plan_cache = PlanCache({}, vocabulary)
    plan = plan_cache.expand("one_step", {"text": "abc"}, ALL)
    assert plan_cache.expand("one_step", {"text": "xyz"}, ALL) is plan
    assert plan_cache.expand("one_step", {"text": "xy"}, ALL) is not plan
    assert plan_cache.expand("one_step", {"text": "abc"}, ()) is not plan
    with pytest.raises(
        ConfigError,
        match="there is no expansion 'two_steps'; there are reduce_tree, agent_turn, ask_again, one_step, "
        "none, broken",
    ):
        plan_cache.expand("two_steps", {}, ALL)
    with pytest.raises(ConfigError, match="expansion 'none' made a graph with 0 outputs"):
        plan_cache.expand("none", {}, ALL)
    with pytest.raises(GraphError, match="nothing produces"):
        plan_cache.expand("broken", {}, ALL)


class Growing(Component):
    """Becomes whatever `body` makes of its text."""

    ports = (Port("text", "text"),)
    outs = {"grown": "any"}  # noqa: RUF012

    def lower(self, build: Builder, config: Any) -> Mapping[str, Ref]:
        body = {"body": "listed", "result": "any"}
        return {"grown": build.add("grown", "expand", (build.take("text"),), config=body)}


def _listed(inputs: Mapping[str, object]) -> Graph:
    return parse_graph("graph sub(%text: text)\n  %x = aggregate(%text) : list[text]\n  return %x")


@in_virtual_time
async def test_a_query_grows_by_what_its_runtime_knows() -> None:
    growing = Growing(text=Input("text", "text"))
    app = Template("growing", growing, {"grown": growing["grown"]})
    async with Runtime([]) as runtime:
        with pytest.raises(ConfigError, match=r"^step 'grown': there is no expansion 'listed'"):
            await runtime.run(app, {"text": "x"})
    async with Runtime([], vocabulary=DEFAULT.with_expansion("listed", _listed)) as runtime:
        assert await runtime.run(app, {"text": "x"}) == {"grown": ["x"]}


def test_an_expansion_is_held_to_its_schema_where_the_engine_can_and_falls_back_to_the_question() -> None:
    settings = {}
    for constrained in (None, True, False):
        configuration: dict[str, dict[str, object]] = {
            "query_expansion": {"constrained": constrained, "fallback": bool(constrained)}
        }
        (decode,) = (n for n in advanced_rag().lower(configuration).primitives if n.name == "queries")
        settings[constrained] = dict(decode.config)
    assert [("json_schema" in s, "schema_if_able" in s, "fallback" in s) for s in settings.values()] == [
        (True, True, False),
        (True, False, True),
        (False, False, False),
    ]


def test_a_constrained_expansion_is_held_to_a_list_of_so_many_texts() -> None:
    configuration = {"query_expansion": {"num_queries": 2, "constrained": True}}
    graph = advanced_rag().lower(configuration)
    (decode,) = (node for node in graph.primitives if node.name == "queries")
    schema = json.loads(str(dict(decode.config)["json_schema"]))
    assert (schema["type"], schema["items"]["type"]) == ("array", "string")
    assert schema["minItems"] == schema["maxItems"] == 2
