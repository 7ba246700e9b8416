"""Predictions, worked out with one table for all versions of a graph, equal those of a plain schedule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.line_counts import num_lines
from support.plain_prediction import plain_prediction
from support.random_apps import App, apps

from stretto.graph.graph import Graph
from stretto.graph.op_table import OPS
from stretto.graph.passes.base import Conditions
from stretto.graph.passes.pipeline import PASSES, run_passes
from stretto.graph.passes.predict import predict
from stretto.graph.passes.steps import Steps
from stretto.graph.text import parse_graph
from stretto.model.profile import Profile

_ENGINES = ("cpu", "embedding", "vectors", "rerank", "web", "llm")

profiles = st.builds(
    Profile,
    st.sampled_from((0.0, 0.004, 0.03)),
    st.sampled_from((0.0, 0.0002, 0.013)),
    st.sampled_from((1, 2, 16)),
    st.sampled_from((0.0, 0.004)),
)
conditions = st.builds(
    Conditions,
    st.fixed_dictionaries(dict.fromkeys(_ENGINES, profiles)),
    st.dictionaries(st.sampled_from(_ENGINES), st.integers(1, 2)),
    st.integers(1, 2),
    st.dictionaries(st.sampled_from(_ENGINES), st.integers(1, 2)),
)


@settings(max_examples=40, deadline=None)
@given(apps(), conditions)
def test_predictions_of_all_versions_equal_those_of_a_plain_schedule(app: App, given: Conditions) -> None:
    steps = Steps(given, OPS)
    versions = [app.graph, *(graph for _, graph in run_passes(app.graph, given.profiles, PASSES))]
    for graph in versions:
        assert predict(graph, steps) == plain_prediction(graph, given, OPS)


def test_pieces_of_a_list_wait_for_the_step_that_makes_the_list_at_once() -> None:
    graph = parse_graph("""graph g(%question: text)
      %hits = web_search(%question) {k=4} : list[hit] @web
      %top  = aggregate(%hits) {best=4} : list[hit]
      %seen = call(each~1 %top) {function="look", result="text"} : list[text] @cpu
      return %seen""")
    web, cpu = Profile(1.0, 0.0, 1), Profile(0.1, 0.0, 1)
    steps = Steps(Conditions({"web": web, "cpu": cpu}), OPS)
    assert predict(graph, steps).seconds == pytest.approx(1.4)


def side_by_side(num: int) -> Graph:
    """Return a graph of so many short prompts and calls, none of which waits for another."""
    lines = ["graph g(%x: text)"]
    for i in range(num):
        lines.append(f'%p{i} = prefill([c"Read {i} ", %x, c" and say yes."]) : kv @llm')
        lines.append(f'%c{i} = call(%x) {{function="look", result="text"}} : text @cpu')
    return parse_graph("\n  ".join([*lines, "return " + ", ".join(f"%c{i}" for i in range(num))]))


def test_what_waits_for_a_busy_engine_is_scheduled_in_linear_time() -> None:
    def lines(num: int) -> int:
        graph = side_by_side(num)
        conditions = Conditions({"llm": Profile(0.004, 0.001), "cpu": Profile(0.1, 0.0, 1)})
        return num_lines(lambda: predict(graph, Steps(conditions, OPS)))

    assert lines(200) < 5 * lines(50)


def test_a_prefill_delays_all_decodes_of_its_engine_at_once() -> None:
    """Every prefill begins while the decodes of all those before it run."""

    def lines(num: int) -> int:
        text = ["graph g(%x: text)"]
        for i in range(num):
            text.append(f'%p{i} = prefill([c"Read {i} ", %x]) : kv @llm')
            text.append(f"%d{i} = decode(%p{i}) {{max_tokens=100000}} : text @llm")
        graph = parse_graph("\n  ".join([*text, "return " + ", ".join(f"%d{i}" for i in range(num))]))
        conditions = Conditions({"llm": Profile(0.004, 0.001, per_output_s=0.01)})
        return num_lines(lambda: predict(graph, Steps(conditions, OPS)))

    assert lines(200) < 5 * lines(50)
