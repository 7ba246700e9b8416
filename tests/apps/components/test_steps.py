"""LLM calls, tool calls and branches as components."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import pytest
from support.template_runs import TemplateRun, variables

from stretto.apps.components.component import Component, Input
from stretto.apps.template import Template
from stretto.components import Condition, FirstPresent, LLMCall, Reranking, Searching, ToolCall
from stretto.graph.graph import Graph
from stretto.graph.op_table import OPS
from stretto.graph.passes.pipeline import PASSES
from stretto.model.errors import ConfigError, EngineFailure, TemplateError
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import ABSENT

CITY, YEAR = Input("city", "text"), Input("year", "number")


def template(last: Component, out: str) -> Template:
    return Template("t", last, {"out": last[out]})


def lowered(last: Component, out: str) -> Graph:
    return template(last, out).lower({})


def test_any_variables_stand_in_a_prompt_once_or_twice() -> None:
    call = LLMCall(prompt="In {year} {city} was {city}. ", year=YEAR, city=CITY)
    run = TemplateRun(template(call, "text"), {"city": "Rome", "year": 1066})
    assert run.outputs == {"out": "<1066> <Rome>"}
    prefill, _ = lowered(call, "text").primitives
    assert [getattr(part, "port", "") for part in prefill.prompt] == ["", "year", "", "city", "", "city", ""]


def test_an_llm_is_called_for_each_item_and_streams_into_the_next_call() -> None:
    cities = LLMCall(name="cities", prompt="JSON list of cities like {city}:", city=CITY, as_list=True)
    told = LLMCall(name="told", prompt="{year}: {city}.", year=YEAR, city=cities["text"], each="city")

    def answer(task: LLMTask, decode: Decode) -> str:
        return '["Rome", "Oslo", "Bonn"]' if decode.items else f"about {variables(task)['city']}"

    runs = [
        TemplateRun(template(told, "text"), {"city": "Kiel", "year": 7}, answer=answer, passes=passes)
        for passes in ((), tuple(PASSES))
    ]
    for run in runs:
        assert run.outputs == {"out": ["about Rome", "about Oslo", "about Bonn"]}
    firsts = [sorted(run.spans("llm"))[1] for run in runs]
    ends = [sorted(run.spans("llm"))[0][1] for run in runs]
    assert firsts[0][0] >= ends[0]
    assert firsts[1][0] < ends[1], "with all passes a city is told of while others are still listed"


def test_settings_of_a_call_reach_its_decode() -> None:
    call = LLMCall(
        prompt="{city}", city=CITY, as_list=True, max_items=2, json_schema="{}", temperature=0.5, stop=("\n",)
    )
    _, decode = lowered(call, "text").primitives
    wanted = {"items": "json_list", "max_items": 2, "json_schema": "{}", "temperature": 0.5, "seed": 0}
    assert dict(decode.config) == {**wanted, "stop": ("\n",), "max_tokens": 128}


def test_a_list_is_held_to_its_form_by_engines_that_can() -> None:
    asked = LLMCall(prompt="{city}", city=CITY, as_list=True, max_items=2)
    graph = Template("held", asked, {"text": asked["text"]}).lower({})
    (decode,) = (p for p in graph if p.op == "decode")
    assert decode.setting("schema_if_able") is True
    assert json.loads(str(decode.setting("json_schema"))) == {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "maxItems": 2,
    }


def test_a_function_gets_its_arguments_by_name() -> None:
    call = ToolCall(function="join", a=CITY, b=YEAR)
    run = TemplateRun(
        template(call, "result"),
        {"city": "Rome", "year": 7},
        functions={"join": lambda a, b: f"{a} in {b}"},
    )
    assert run.outputs == {"out": "Rome in 7"}


def test_a_function_is_called_for_each_item() -> None:
    call = ToolCall(
        function="repeat", result="text", each="word", word=Input("words", "list[text]"), times=YEAR
    )
    run = TemplateRun(
        template(call, "result"),
        {"words": ["a", "b"], "year": 3},
        functions={"repeat": lambda word, times: word * times},
    )
    assert run.outputs == {"out": ["aaa", "bbb"]}


def test_an_effect_is_marked_and_the_next_step_waits_for_it() -> None:
    saved: list[str] = []
    words = Input("words", "list[text]")
    save = ToolCall(name="save", function="save", result="effect", each="word", word=words)
    count = ToolCall(name="count", function="count", result="number", saved=save["result"])
    functions: dict[str, Callable[..., object]] = {
        "save": lambda word: saved.append(word),
        "count": lambda saved: num_saved(),
    }

    def num_saved() -> int:
        return len(saved)

    run = TemplateRun(template(count, "result"), {"words": ["a", "b"]}, functions=functions)
    assert run.outputs == {"out": 2}
    first = lowered(count, "result").primitives[0]
    assert OPS.is_effect(first)


def test_a_function_that_raises_names_the_step() -> None:
    call = ToolCall(name="divide", function="divide", by=YEAR)
    run = TemplateRun(template(call, "result"), {"year": 0}, functions={"divide": lambda by: 1 / by})
    assert isinstance(run.error, EngineFailure)
    assert run.error.step == "divide"


def branching(equals: str = "") -> Template:
    """Tell of a city; without one, say so."""
    split = Condition(value=CITY, equals=equals)
    told = LLMCall(name="told", prompt="Tell of {city}.", city=split["yes"])
    said = ToolCall(name="said", function="none", city=split["no"])
    joined = FirstPresent(told=told["text"], said=said["result"])
    return Template("t", joined, {"out": joined["value"], "told": told["text"], "said": said["result"]})


@pytest.mark.parametrize(
    ("city", "equals", "told"),
    [("Rome", "", True), ("", "", False), ("Rome!", "rome", True), ("Romeo", "rome", False)],
)
def test_one_branch_runs_and_both_are_joined(city: str, equals: str, told: bool) -> None:
    for passes in chain.from_iterable(combinations(PASSES, size) for size in (0, 1, len(PASSES))):
        run = TemplateRun(
            branching(equals), {"city": city}, functions={"none": lambda city: "nothing"}, passes=passes
        )
        wanted = f"<{city}>" if told else "nothing"
        assert run.outputs["out"] == wanted
        assert run.outputs["said" if told else "told"] is ABSENT
        assert len(run.spans("llm")) == told


def test_a_branch_that_streams_is_shown_as_the_joined_output() -> None:
    run = TemplateRun(branching(), {"city": "Rome on the Tiber"}, functions={"none": lambda city: "-"})
    assert run.streamed["out"] == run.outputs["out"] == "<Rome on the Tiber>"


@pytest.mark.parametrize("is_tool", [False, True])
def test_a_call_is_skipped_unless_its_guard_has_a_value(is_tool: bool) -> None:
    split = Condition(value=YEAR)
    guarded: Component = LLMCall(prompt="{city}", city=CITY, when=split["yes"])
    if is_tool:
        guarded = ToolCall(function="f", city=CITY, when=split["yes"])
    app = template(guarded, "result" if is_tool else "text")
    functions = {"f": lambda city: f"<{city}>"}
    assert TemplateRun(app, {"city": "Rome", "year": 1}, functions=functions).outputs == {"out": "<Rome>"}
    assert TemplateRun(app, {"city": "Rome", "year": 0}, functions=functions).outputs == {"out": ABSENT}


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: LLMCall(city=CITY), "prompt is empty"),
        (lambda: LLMCall(prompt="{city} {land}", city=CITY), "'{land}'"),
        (lambda: LLMCall(prompt="Hello {{}}", city=CITY), "does not use {city}"),
        (lambda: LLMCall(prompt="{city}", city=CITY, each="cities"), "each='cities' is no variable"),
        (lambda: LLMCall(prompt="{city}", city=CITY, each="city"), "cannot take each"),
        (lambda: LLMCall(prompt="{city}", city=CITY, max_items=2), "set as_list=True"),
        (lambda: LLMCall(prompt="{city}", city=CITY, max_tokens=0), "max_tokens=0"),
        (lambda: LLMCall(prompt="{city}", city=CITY, temperature=-1.0), "temperature=-1.0"),
        (lambda: LLMCall(prompt="{v}", v=Input("v", "vector")), "cannot stand in a prompt"),
        (lambda: LLMCall(prompt="{city}", city=CITY, tempature=0.5), "did you mean temperature"),
        (lambda: ToolCall(city=CITY), "function is empty"),
        (lambda: ToolCall(function="f", city=CITY, each="x"), "each='x' is no argument"),
        (lambda: ToolCall(function="f", city=CITY, idempotent=True), "is for result='effect'"),
        (lambda: ToolCall(function="f", city=CITY, result="txt"), "unknown type 'txt'"),
        (lambda: Condition(), "port 'value' is not fed"),
    ],
)
def test_unusable_calls_are_refused_when_the_app_is_built(make: Any, problem: str) -> None:
    with pytest.raises((ConfigError, TemplateError), match=problem):
        Template("t", make(), {})


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: LLMCall(max_token=5), "max_token is no setting of LLMCall; did you mean max_tokens?"),
        (lambda: LLMCall(a=CITY, retrys=5), "retrys is no setting of LLMCall; did you mean retries?"),
        (lambda: LLMCall(a=CITY, zzz=5), "zzz is no setting of LLMCall; there are prompt, each, as_list"),
        (lambda: ToolCall(functoin="f"), "functoin is no setting of ToolCall; did you mean function?"),
        (lambda: FirstPresent(a=CITY, engin="f"), "engin is no setting of FirstPresent; there are hints"),
        (lambda: LLMCall(when=5), "port 'when' is fed with a int"),
        (
            lambda: Searching(querys=CITY),
            "port or setting 'querys'; ports: queries, indexed",
        ),
        (
            lambda: Reranking(bets=3),
            "ports: question, hits; did you mean best?",
        ),
    ],
)
def test_a_misspelt_setting_is_named_with_the_nearest(make: Any, problem: str) -> None:
    with pytest.raises(TemplateError) as caught:
        make()
    assert problem in str(caught.value)


@pytest.mark.parametrize("settings", [{}, {"name": "found"}, {"name": "again", "retries": 2}])
def test_a_search_in_nothing_is_refused_when_the_app_is_built(settings: dict[str, Any]) -> None:
    searching = Searching(queries=CITY, **settings)
    with pytest.raises(
        ConfigError, match=f"{searching.name}: it has nothing to search in: connect `indexed` "
    ):
        Template("app", searching, {"hits": searching["hits"]})
