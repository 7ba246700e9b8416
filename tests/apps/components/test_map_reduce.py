"""A list is read item by item, and the outputs become one."""

from __future__ import annotations

from typing import Any

import pytest
from support.template_runs import TemplateRun

from stretto.apps.components.component import Input
from stretto.apps.components.map_reduce import reduce_tree
from stretto.apps.template import Template
from stretto.components import MapReduce
from stretto.graph.passes.pipeline import PASSES
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError
from stretto.model.values import ABSENT

SETTINGS = {"prompt": "summarise", "fan_in": 3, "max_tokens": 9, "engine": "llm"}


def app(**settings: Any) -> Template:
    mapped = MapReduce(items=Input("texts", "list[text]"), **settings)
    return Template("t", mapped, {"text": mapped["text"], "parts": mapped["parts"]})


@pytest.mark.parametrize("passes", [(), tuple(PASSES)])
def test_outputs_are_combined_in_order_a_few_at_a_time(passes: tuple[str, ...]) -> None:
    run = TemplateRun(app(fan_in=2), {"texts": list("abc")}, passes=passes)
    assert run.outputs["parts"] == ["<a>", "<b>", "<c>"]
    assert run.outputs["text"] == "<<<a>\n\n<b>>\n\n<c>>"
    assert run.streamed["text"] == run.outputs["text"]


@pytest.mark.parametrize(("texts", "text"), [([], ABSENT), (["a"], "<a>")])
def test_a_list_of_one_needs_no_combining_and_an_empty_one_has_no_result(
    texts: list[str], text: object
) -> None:
    assert TemplateRun(app(), {"texts": texts}).outputs["text"] == text


def test_a_tree_so_large_that_others_have_a_turn_before_it_begins() -> None:
    run = TemplateRun(app(fan_in=2), {"texts": [str(number) for number in range(20)]}, passes=())
    assert len(run.spans("llm")) == 20 + 19
    assert run.error is None


@pytest.mark.parametrize(("num_parts", "num_calls"), [(0, 0), (1, 0), (3, 1), (4, 2), (10, 5)])
def test_it_grows_by_as_many_calls_as_it_takes(num_parts: int, num_calls: int) -> None:
    graph = reduce_tree({"parts": ["a part"] * num_parts, **SETTINGS})
    verify(graph)
    assert sum(primitive.op == "decode" for primitive in graph) == num_calls


@pytest.mark.parametrize("settings", [{"fan_in": 1}, {"max_tokens": 0}, {"reduce_prompt": "{wrong}"}])
def test_unusable_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        app(**settings)
