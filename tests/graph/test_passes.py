"""Every pass: before and after, as text."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import ADVANCED_RAG, OPTIMISED_RAG
from support.line_counts import num_lines
from support.random_apps import App, apps

from stretto.apps.vocabulary import DEFAULT
from stretto.graph.graph import Graph
from stretto.graph.op_table import OPS
from stretto.graph.passes.pipeline import PASSES, apply_pass, optimise, run_passes
from stretto.graph.text import parse_graph, print_graph
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError, GraphError
from stretto.model.profile import Profile

PROFILES = {"embedding": Profile(max_efficient_batch=128), "slow": Profile(base_s=10.0, per_unit_s=0.05)}


def check(name: str, before: str, after: str) -> None:
    """Check that a pass turns `before` into `after`, and does not change it further."""
    graph = parse_graph(dedent(before))
    changed = apply_pass(name, PASSES[name], graph, PROFILES)
    assert print_graph(changed) == print_graph(parse_graph(dedent(after)))
    assert PASSES[name](changed, PROFILES, OPS) is changed


def check_unchanged(name: str, text: str) -> None:
    graph = parse_graph(dedent(text))
    assert PASSES[name](graph, PROFILES, OPS) is graph


def test_all_passes_on_the_worked_example() -> None:
    graph = optimise(
        parse_graph(ADVANCED_RAG),
        {"embedding": Profile(max_efficient_batch=128), "vectors": Profile(max_efficient_batch=128)},
        PASSES,
    )
    assert print_graph(graph) == OPTIMISED_RAG


def test_prune_order_keeps_effects() -> None:
    check(
        "prune_order",
        """
        graph g(%q: text, %v: vector, %cs: list[chunk])
          %vs = embed(each %cs) : list[vector] @embedding
          !indexed = ingest(each %cs, each %vs) : effect @vectors
          %hits = search(%v, !indexed) : list[hit] @vectors
          %more = search(%v) : list[hit] @vectors
          order indexed > hits
          order hits > more
          return %hits, %more
        """,
        """
        graph g(%q: text, %v: vector, %cs: list[chunk])
          %vs = embed(each %cs) : list[vector] @embedding
          !indexed = ingest(each %cs, each %vs) : effect @vectors
          %hits = search(%v, !indexed) : list[hit] @vectors
          %more = search(%v) : list[hit] @vectors
          order indexed > more
          return %hits, %more
        """,
    )


def test_prune_order_keeps_the_order_of_steps_that_touch_the_same_state() -> None:
    """A step waits for the effect itself, and not for the pure steps that are written between them."""
    check(
        "prune_order",
        """
        graph g(%q: text)
          !pay = call(x=%q) {result="effect"} : effect @tools
          %kv = prefill([c"Thank for ", %q]) : kv @llm
          %text = decode(%kv) : text @llm
          !mail = call(x=%q) {result="effect"} : effect @tools
          %balance = call(x=%q) {result="text"} : text @tools
          %rate = call(x=%q) {result="text"} : text @tools
          !log = call(x=%q) {result="effect"} : effect @tools
          %v = embed(%q) : vector @embedding
          order pay > kv
          order text > mail
          order mail > balance
          order mail > rate
          order balance > log
          order rate > log
          order log > v
          return %text, %balance, %rate, %v
        """,
        """
        graph g(%q: text)
          !pay = call(x=%q) {result="effect"} : effect @tools
          %kv = prefill([c"Thank for ", %q]) : kv @llm
          %text = decode(%kv) : text @llm
          !mail = call(x=%q) {result="effect"} : effect @tools
          %balance = call(x=%q) {result="text"} : text @tools
          %rate = call(x=%q) {result="text"} : text @tools
          !log = call(x=%q) {result="effect"} : effect @tools
          %v = embed(%q) : vector @embedding
          order pay > mail
          order mail > balance
          order mail > rate
          order balance > log
          order rate > log
          return %text, %balance, %rate, %v
        """,
    )


def test_a_search_waits_for_a_second_ingestion_and_its_embedding_does_not() -> None:
    """A collection is no other state than another one: two texts may name the same."""
    check(
        "prune_order",
        """
        graph g(%q: text, %a: list[chunk], %b: list[chunk], %name: text, %other: text)
          %va = embed(each %a) : list[vector] @embedding
          !first = ingest(each %a, each %va, %name) : effect @vectors
          %vb = embed(each %b) : list[vector] @embedding
          !second = ingest(each %b, each %vb, %name) : effect @vectors
          %v = embed(%q) : vector @embedding
          %hits = search(%v, !first, %name) : list[hit] @vectors
          %more = search(%v, collection=%other) : list[hit] @vectors
          order first > vb
          order second > v
          order hits > more
          return %hits, %more
        """,
        """
        graph g(%q: text, %a: list[chunk], %b: list[chunk], %name: text, %other: text)
          %va = embed(each %a) : list[vector] @embedding
          !first = ingest(each %a, each %va, %name) : effect @vectors
          %vb = embed(each %b) : list[vector] @embedding
          !second = ingest(each %b, each %vb, %name) : effect @vectors
          %v = embed(%q) : vector @embedding
          %hits = search(%v, !first, %name) : list[hit] @vectors
          %more = search(%v, collection=%other) : list[hit] @vectors
          order first > second
          order second > hits
          order second > more
          return %hits, %more
        """,
    )


def test_prune_order_takes_a_graph_that_grows_for_an_effect_unless_it_says_that_it_is_none() -> None:
    check(
        "prune_order",
        """
        graph g(%q: text)
          !pay = call(x=%q) {result="effect"} : effect @tools
          %unknown = expand(x=%q) {body="b", result="text"} : text
          %reading = expand(x=%q) {access="reads", body="b", result="text"} : text
          %reading2 = expand(x=%q) {access="reads", body="b", result="text"} : text
          %pure = expand(x=%q) {access="none", body="b", result="text"} : text
          order pay > unknown
          order unknown > reading
          order reading > reading2
          order reading2 > pure
          return %reading, %reading2, %pure
        """,
        """
        graph g(%q: text)
          !pay = call(x=%q) {result="effect"} : effect @tools
          %unknown = expand(x=%q) {body="b", result="text"} : text
          %reading = expand(x=%q) {access="reads", body="b", result="text"} : text
          %reading2 = expand(x=%q) {access="reads", body="b", result="text"} : text
          %pure = expand(x=%q) {access="none", body="b", result="text"} : text
          order pay > unknown
          order unknown > reading
          order unknown > reading2
          return %reading, %reading2, %pure
        """,
    )


def test_drop_dead_keeps_the_order_of_effects_around_a_dropped_step() -> None:
    check(
        "drop_dead",
        """
        graph g(%q: text)
          !pay = call(x=%q) {result="effect"} : effect @tools
          %unread = embed(%q) : vector @embedding
          %unread2 = call(x=%q) {result="text"} : text @tools
          !mail = call(x=%q) {result="effect"} : effect @tools
          order pay > unread
          order unread > unread2
          order unread2 > mail
        """,
        """
        graph g(%q: text)
          !pay = call(x=%q) {result="effect"} : effect @tools
          !mail = call(x=%q) {result="effect"} : effect @tools
          order pay > mail
        """,
    )


@pytest.mark.parametrize("name", ["split_stages", "pipeline_decode"])
def test_an_effect_does_not_stream_behind_what_reads_the_state_that_it_changes(name: str) -> None:
    """The last items would be read after the first ones have been changed."""
    before = """
        graph g(%q: text)
          %kv = prefill([%q]) : kv @llm
          %names = decode(%kv) {items="json_list"} : list[text] @llm #splittable
          %prices = call(x=each %names) {result="text"} : list[text] @slow #batchable
          %vectors = embed(each %prices) : list[vector] @slow #batchable
          !bought = call(x=each %prices, y=each %vectors) {result="effect"} : effect @slow #batchable
          return %prices
        """
    changed = apply_pass(name, PASSES[name], parse_graph(dedent(before)), PROFILES)
    pieces = {p.name: [arg.piece for arg in p.args if arg.each] for p in changed}
    assert pieces["bought"] == [None, None]
    assert None not in [*pieces["prices"], *pieces["vectors"]]


def test_split_stages_streams_batchable_primitives_in_step() -> None:
    """The piece is the engine's efficient batch, or that of the stage before if smaller."""
    check(
        "split_stages",
        """
        graph g(%files: list[document])
          %chunks = chunk(each %files) : list[chunk] @cpu #batchable
          %vectors = embed(each %chunks) : list[vector] @embedding #batchable
          %small = embed(each %chunks) : list[vector] @other #batchable
          !a = ingest(each %chunks, each %vectors) : effect @embedding #batchable
          !b = ingest(each %chunks, each %small) : effect @embedding #batchable
          %whole = embed(each %chunks) : list[vector] @embedding
          return %whole
        """,
        """
        graph g(%files: list[document])
          %chunks = chunk(each~32 %files) : list[chunk] @cpu #batchable
          %vectors = embed(each~128 %chunks) : list[vector] @embedding #batchable
          %small = embed(each~32 %chunks) : list[vector] @other #batchable
          !a = ingest(each~128 %chunks, each~128 %vectors) : effect @embedding #batchable
          !b = ingest(each~32 %chunks, each~32 %small) : effect @embedding #batchable
          %whole = embed(each %chunks) : list[vector] @embedding
          return %whole
        """,
    )


def test_split_stages_leaves_single_applications_and_finer_streams() -> None:
    check_unchanged(
        "split_stages",
        """
        graph g(%q: text, %qs: list[text])
          %one = embed(%q) : vector @embedding #batchable
          %many = embed(each~1 %qs) : list[vector] @embedding #batchable
          return %one, %many
        """,
    )


def test_pipeline_decode_streams_items_as_far_as_primitives_are_batchable() -> None:
    check(
        "pipeline_decode",
        """
        graph g(%kv: kv, %q: text)
          %queries = decode(%kv) {items="json_list"} : list[text] @llm #splittable
          %vectors = embed(each~32 %queries) : list[vector] @embedding #batchable
          %hits = search(each %vectors) : list[list[hit]] @vectors #batchable
          %scored = rerank(%q, each %hits) : list[list[hit]] @rerank
          %again = rerank(%q, each %scored) : list[list[hit]] @rerank #batchable
          %whole = decode(%kv) {items="json_list", max_tokens=9} : list[text] @llm
          %later = embed(each %whole) : list[vector] @embedding #batchable
          return %again, %later
        """,
        """
        graph g(%kv: kv, %q: text)
          %queries = decode(%kv) {items="json_list"} : list[text] @llm #splittable
          %vectors = embed(each~1 %queries) : list[vector] @embedding #batchable
          %hits = search(each~1 %vectors) : list[list[hit]] @vectors #batchable
          %scored = rerank(%q, each %hits) : list[list[hit]] @rerank
          %again = rerank(%q, each %scored) : list[list[hit]] @rerank #batchable
          %whole = decode(%kv) {items="json_list", max_tokens=9} : list[text] @llm
          %later = embed(each %whole) : list[vector] @embedding #batchable
          return %again, %later
        """,
    )


def test_split_prefill_cuts_where_availability_changes() -> None:
    """Three cuts of one prompt: known at once, after the retrieval, after the first answer."""
    check(
        "split_prefill",
        """
        graph g(%q: text, %kv: kv)
          %top = web_search(%q) : list[hit] @web
          %a1 = decode(%kv) : text @llm
          %a2 = call(%top, %a1) {result="text"} : text @web
          %kv2 = prefill([c"Use ", %q, c": ", %top[1], c" or ", %top[2], c" and ", %a2, c" or ", %a1, c"!"]) : kv @llm
          return %kv2
        """,  # noqa: E501
        """
        graph g(%q: text, %kv: kv)
          %top = web_search(%q) : list[hit] @web
          %a1 = decode(%kv) : text @llm
          %a2 = call(%top, %a1) {result="text"} : text @web
          %kv2.1 = prefill([c"Use ", %q, c": "]) : kv @llm
          %kv2.2 = prefill([c"Use ", %q, c": ", %top[1], c" or ", %top[2], c" and "], hint=%kv2.1) : kv @llm
          %kv2 = prefill([c"Use ", %q, c": ", %top[1], c" or ", %top[2], c" and ", %a2, c" or ", %a1, c"!"], hint=%kv2.2) : kv @llm
          return %kv2
        """,  # noqa: E501
    )


def test_split_prefill_cuts_before_late_inputs() -> None:
    """What a session sets later is not known at once, and each late input may come at another time."""
    check(
        "split_prefill",
        """
        graph g(%q: text, %a: late text, %b: late text)
          %kv = prefill([c"Use ", %q, c": ", %a, c" and ", %b, c" or ", %a]) : kv @llm
          return %kv
        """,
        """
        graph g(%q: text, %a: late text, %b: late text)
          %kv.1 = prefill([c"Use ", %q, c": "]) : kv @llm
          %kv.2 = prefill([c"Use ", %q, c": ", %a, c" and "], hint=%kv.1) : kv @llm
          %kv = prefill([c"Use ", %q, c": ", %a, c" and ", %b, c" or ", %a], hint=%kv.2) : kv @llm
          return %kv
        """,
    )


def test_split_prefill_cuts_before_what_differs_from_item_to_item() -> None:
    check(
        "split_prefill",
        """
        graph g(%q: text)
          %hits = web_search(%q) : list[hit] @web
          %kvs = prefill([c"Use ", %q, c": ", each %hits, c" for ", %hits[0]]) : list[kv] @llm
          return %kvs
        """,
        """
        graph g(%q: text)
          %hits = web_search(%q) : list[hit] @web
          %kvs.1 = prefill([c"Use ", %q, c": "]) : kv @llm
          %kvs = prefill([c"Use ", %q, c": ", each %hits, c" for ", %hits[0]], hint=%kvs.1) : list[kv] @llm
          return %kvs
        """,
    )


def test_split_prefill_respects_guards_order_and_taken_names() -> None:
    """A part is guarded and ordered as the whole; what these wait for is known by then."""
    check(
        "split_prefill",
        """
        graph g(%q: text)
          %c = condition(%q) : text
          %kv.1 = web_search(%q) : list[hit] @web
          %x = web_search(%q) : list[hit] @web
          %kv = prefill([c"Use ", %c.yes, %x, c" or ", %kv.1], when=%c.yes) : kv @llm
          order x > kv
          return %kv
        """,
        """
        graph g(%q: text)
          %c = condition(%q) : text
          %kv.1 = web_search(%q) : list[hit] @web
          %x = web_search(%q) : list[hit] @web
          %kv.2 = prefill([c"Use ", %c.yes, %x, c" or "], when=%c.yes) : kv @llm
          %kv = prefill([c"Use ", %c.yes, %x, c" or ", %kv.1], when=%c.yes, hint=%kv.2) : kv @llm
          order x > kv
          order x > kv.2
          return %kv
        """,
    )


@pytest.mark.parametrize(
    "line",
    [
        '%kv = prefill([c"Use ", %q, c" and ", %n]) : kv @llm',
        "%kv = prefill([%x, %q]) : kv @llm",
        '%kv = prefill([c"Hi ", %x]) : kv @slow',
        '%kv = prefill([c"Use ", %q, %x], hint=%given) : kv @slow',
    ],
)
def test_split_prefill_has_nothing_to_gain(line: str) -> None:
    """All known at once; nothing known ahead; too little to pay for a request."""
    check_unchanged(
        "split_prefill",
        f"""
        graph g(%q: text, %n: number, %given: kv)
          %x = web_search(%q) : list[hit] @web
          {line}
          return %kv
        """,
    )


def test_split_prefill_takes_over_a_hint_that_comes_from_elsewhere() -> None:
    check(
        "split_prefill",
        """
        graph g(%q: text, %given: kv)
          %x = web_search(%q) : list[hit] @web
          %kv = prefill([c"Use ", %q, %x], hint=%given) : kv @llm
          return %kv
        """,
        """
        graph g(%q: text, %given: kv)
          %x = web_search(%q) : list[hit] @web
          %kv.1 = prefill([c"Use ", %q], hint=%given) : kv @llm
          %kv = prefill([c"Use ", %q, %x], hint=%kv.1) : kv @llm
          return %kv
        """,
    )


def test_share_prefix_merges_equal_heads() -> None:
    check(
        "share_prefix",
        """
        graph g(%q: text, %a: text)
          %x = web_search(%q) : list[hit] @web
          %h1 = prefill([c"Use ", %q]) : kv @llm
          %k1 = prefill([c"Use ", %q, %x], hint=%h1) : kv @llm
          %h2 = prefill([c"Use ", %q]) : kv @llm
          %k2 = prefill([c"Use ", %q, %x, %a], hint=%h2) : kv @llm
          order x > k2
          return %k1, %k2
        """,
        """
        graph g(%q: text, %a: text)
          %x = web_search(%q) : list[hit] @web
          %h1 = prefill([c"Use ", %q]) : kv @llm
          %k1 = prefill([c"Use ", %q, %x], hint=%h1) : kv @llm
          %k2 = prefill([c"Use ", %q, %x, %a], hint=%h1) : kv @llm
          order x > k2
          return %k1, %k2
        """,
    )


def test_share_prefix_finds_common_beginnings_by_itself() -> None:
    """Also of mapped prompts; a prompt that is itself the common beginning needs no new one."""
    check(
        "share_prefix",
        """
        graph g(%q: text, %a: text, %xs: list[text])
          %k1 = prefill([c"Use ", %q, c" or ", %a]) : kv @llm
          %k2 = prefill([c"Use ", %q, c" and ", %a]) : kv @llm
          %k3 = prefill([c"Use ", %q, each %xs]) : list[kv] @llm
          %k4 = prefill([c"See ", %q, c" and ", %a]) : kv @llm
          %k5 = prefill([c"See ", %q]) : kv @llm
          %k6 = prefill([c"Do ", %q]) : kv @llm
          %k7 = prefill([c"Do ", %q, %a]) : kv @llm
          return %k1, %k2, %k3, %k4, %k5, %k6, %k7
        """,
        """
        graph g(%q: text, %a: text, %xs: list[text])
          %k1.shared = prefill([c"Use ", %q]) : kv @llm
          %k1 = prefill([c"Use ", %q, c" or ", %a], hint=%k1.shared) : kv @llm
          %k2 = prefill([c"Use ", %q, c" and ", %a], hint=%k1.shared) : kv @llm
          %k3 = prefill([c"Use ", %q, each %xs], hint=%k1.shared) : list[kv] @llm
          %k4.shared = prefill([c"See ", %q]) : kv @llm
          %k4 = prefill([c"See ", %q, c" and ", %a], hint=%k4.shared) : kv @llm
          %k5 = prefill([c"See ", %q], hint=%k4.shared) : kv @llm
          %k6 = prefill([c"Do ", %q]) : kv @llm
          %k7 = prefill([c"Do ", %q, %a], hint=%k6) : kv @llm
          return %k1, %k2, %k3, %k4, %k5, %k6, %k7
        """,
    )


def test_share_prefix_tells_roles_apart() -> None:
    check(
        "share_prefix",
        """
        graph g(%q: text, %a: text)
          %k1 = prefill([system"Be brief.", user"See ", %q]) : kv @llm
          %k2 = prefill([system"Be brief.", user"See ", %a]) : kv @llm
          %k3 = prefill([system"Be brief.", assistant"See ", %a]) : kv @llm
          %k4 = prefill([user"Be brief.", c"See ", %a]) : kv @llm
          return %k1, %k2, %k3, %k4
        """,
        """
        graph g(%q: text, %a: text)
          %k1.shared = prefill([system"Be brief."]) : kv @llm
          %k1 = prefill([system"Be brief.", user"See ", %q], hint=%k1.shared) : kv @llm
          %k2 = prefill([system"Be brief.", user"See ", %a], hint=%k1.shared) : kv @llm
          %k3 = prefill([system"Be brief.", assistant"See ", %a], hint=%k1.shared) : kv @llm
          %k4 = prefill([user"Be brief.", c"See ", %a]) : kv @llm
          return %k1, %k2, %k3, %k4
        """,
    )


def test_share_prefix_never_crosses_engines_guards_or_order() -> None:
    check_unchanged(
        "share_prefix",
        """
        graph g(%q: text, %a: text)
          %c = condition(%q) : text
          %k1 = prefill([c"Use ", %q, c" or ", %a]) : kv @llm
          %k2 = prefill([c"Use ", %q, c" and ", %a]) : kv @other
          %k3 = prefill([c"Use ", %q, c" and ", %a], when=%c.yes) : kv @llm
          %k4 = prefill([c"Use ", %q, c" and ", %a], when=%c.no) : kv @llm
          %k5 = prefill([c"Use ", %q, c" and ", %a]) : kv @llm
          %k6 = prefill([c"Use ", question=%a, %q]) : kv @llm
          %k7 = prefill([c"Hm ", %q, %a]) : kv @slow
          %k8 = prefill([c"Hm ", %a]) : kv @slow
          order c > k5
          order k1 > k6
          return %k1, %k2, %k3, %k4, %k5, %k6, %k7, %k8
        """,
    )


def test_share_prefix_merges_what_follows_merged_prefills() -> None:
    """The second pair becomes equal only when the first is merged; one run merges both."""
    check(
        "share_prefix",
        """
        graph g(%q: text, %x: text)
          %a1 = prefill([c"A ", %q]) : kv @llm
          %a2 = prefill([c"A ", %q]) : kv @llm
          %b1 = prefill([c"B ", %q]) : kv @llm
          %b2 = prefill([c"B ", %q]) : kv @llm
          order a1 > b1
          order a2 > b2
          return %b1, %b2
        """,
        """
        graph g(%q: text, %x: text)
          %a1 = prefill([c"A ", %q]) : kv @llm
          %b1 = prefill([c"B ", %q]) : kv @llm
          order a1 > b1
          return %b1, b2=%b1
        """,
    )


def test_a_call_that_saves_something_is_kept_and_comes_before_what_its_guard_is_for() -> None:
    text = """
        graph g(%x: text)
          !saved = call(x=%x) {function="save", result="effect"} : effect @calls
          %read = call(x=%x, when=!saved) {function="read", result="text"} : text @calls
          return %x
        """
    dead = '          %read = call(x=%x, when=!saved) {function="read", result="text"} : text @calls\n'
    check("drop_dead", text, text.replace(dead, ""))


def test_drop_dead_keeps_outputs_effects_and_what_they_need() -> None:
    check(
        "drop_dead",
        """
        graph g(%q: text, %files: list[document])
          %chunks = chunk(each %files) : list[chunk] @cpu
          %vectors = embed(each %chunks) : list[vector] @embedding
          !indexed = ingest(each %chunks, each %vectors) : effect @vectors
          %c = condition(%q) : text
          %d = condition(%q) : text
          %hits = web_search(%q, when=%c.no) : list[hit] @web
          %more = web_search(%q, when=%d.no) : list[hit] @web
          %top = aggregate(%more) {best=3} : list[hit]
          order indexed > more
          order c > hits
          return %hits
        """,
        """
        graph g(%q: text, %files: list[document])
          %chunks = chunk(each %files) : list[chunk] @cpu
          %vectors = embed(each %chunks) : list[vector] @embedding
          !indexed = ingest(each %chunks, each %vectors) : effect @vectors
          %c = condition(%q) : text
          %hits = web_search(%q, when=%c.no) : list[hit] @web
          order c > hits
          return %hits
        """,
    )


@given(apps(), st.lists(st.sampled_from(sorted(PASSES)), max_size=6))
@settings(
    max_examples=50, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_every_pass_is_idempotent_whatever_ran_before(app: App, before: list[str]) -> None:
    graph = app.graph
    for name in before:
        graph = apply_pass(name, PASSES[name], graph, PROFILES)
    for name, run_pass in PASSES.items():
        once = apply_pass(name, run_pass, graph, PROFILES)
        assert print_graph(run_pass(once, PROFILES, OPS)) == print_graph(once), name


@given(apps())
@settings(
    max_examples=50, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_one_sweep_reaches_the_fixed_point(app: App) -> None:
    """In these graphs the passes make no work for earlier ones, so a second sweep finds nothing to do."""
    once = optimise(app.graph, PROFILES, PASSES)
    assert print_graph(optimise(once, PROFILES, PASSES)) == print_graph(once)
    steps = [changed for _, changed in run_passes(app.graph, PROFILES, PASSES)]
    assert len(steps) <= 2 * len(PASSES)
    assert steps[len(PASSES) - 1] == steps[-1] == once


def test_passes_are_selected_by_name() -> None:
    assert DEFAULT.select_passes("all") == tuple(PASSES)
    assert DEFAULT.select_passes("none") == ()
    assert DEFAULT.select_passes("drop_dead, prune_order") == ("prune_order", "drop_dead")
    assert DEFAULT.select_passes({"split_stages"}) == ("split_stages",)
    with pytest.raises(ConfigError, match="there is no pass 'fuse'; there are prune_order"):
        DEFAULT.select_passes("fuse")


def test_a_pass_of_ones_own_is_verified() -> None:
    own = DEFAULT.with_pass("forget", lambda graph, *_: Graph(graph.name, (), graph.primitives, (), ()))
    with pytest.raises(ConfigError, match="the pass 'forget' is there already"):
        own.with_pass("forget", lambda graph, *_: graph)
    graph = parse_graph("graph g(%q: text)\n%x = select(%q) : text\nreturn %x")
    with pytest.raises(GraphError, match="pass forget: %x: port 'q' reads %q, which nothing produces"):
        optimise(graph, {}, {"forget": own.passes["forget"]})
    assert verify(graph)


def test_prompts_that_differ_are_told_apart_in_linear_time() -> None:
    def lines(num: int) -> int:
        text = ["graph g(%x: text)"]
        text += [
            f'%p{i} = prefill([c"Read this: ", %x, c" and count to {i}."]) : kv @llm' for i in range(num)
        ]
        graph = parse_graph("\n  ".join([*text, "return " + ", ".join(f"%p{i}" for i in range(num))]))
        return num_lines(lambda: PASSES["share_prefix"](graph, PROFILES, OPS))

    assert lines(200) < 5 * lines(50)
