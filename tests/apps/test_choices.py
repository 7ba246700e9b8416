"""Hints and strategies that the user of a component chooses, in code and in a query's configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.runtime_engines import acting
from support.virtual_loop import in_virtual_time

from stretto import Component, Input, Runtime, Task, Template, deploy
from stretto.apps import advanced_rag
from stretto.apps.components.builder import Builder
from stretto.apps.plan_cache import PlanCache
from stretto.components import Generation, Indexing, QueryExpansion, Reranking, Searching
from stretto.graph.graph import Ref
from stretto.graph.ops import Port
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.strategy import NO_STRATEGY, Strategy
from stretto.graph.text import parse_graph, print_graph
from stretto.model.errors import ConfigError, EngineFailure

QUESTION, FILES = Input("question", "text"), Input("files", "list[document]")


def indexing_app(**choices: Any) -> Template:
    indexing = Indexing(files=FILES, **choices)
    return Template("t", indexing, {"indexed": indexing["indexed"]})


def test_every_component_takes_the_choices_and_its_steps_carry_them() -> None:
    app = indexing_app(
        timeout_s=5, retries=2, backoff_s=0.1, fallback="embedding:backup", passes="split_stages"
    )
    strategies = {primitive.name: primitive.strategy for primitive in app.lower({})}
    assert strategies["vectors"] == Strategy(("split_stages",), 5, 2, 0.1, "backup")
    assert strategies["chunks"] == Strategy(("split_stages",), 5, 2, 0.1)


def test_a_query_changes_them_for_itself() -> None:
    app, plans = indexing_app(retries=1), PlanCache({})
    assert {p.strategy for p in app.lower({"indexing": {"retries": 3}})} == {Strategy(retries=3)}
    assert {p.strategy for p in app.lower({})} == {Strategy(retries=1)}
    listed: Mapping[str, Mapping[str, object]] = {"indexing": {"passes": ["split_stages"], "hints": []}}
    plan = plans.plan(app, listed, tuple(PASSES))
    assert plans.plan(app, listed, tuple(PASSES)) is plan
    assert all(not p.hints and p.strategy.passes == ("split_stages",) for p in plan.graph)
    assert {p.strategy for p in advanced_rag().lower({})} == {NO_STRATEGY}


def test_hints_replace_those_of_the_class_where_a_step_can_keep_them() -> None:
    hinted = {p.name: p.hints for p in indexing_app(hints=["batchable"]).lower({})}
    assert hinted == dict.fromkeys(("chunks", "vectors", "indexed"), ("batchable",))
    assert all(not primitive.hints for primitive in indexing_app(hints=()).lower({}))
    expansion = QueryExpansion(question=QUESTION, hints="splittable")
    graph = Template("t", expansion, {"queries": expansion["queries"]}).lower({})
    assert [primitive.hints for primitive in graph] == [(), ("splittable",)]
    hits = Input("hits", "list[hit]")
    reranking = Reranking(question=QUESTION, hits=hits, hints="batchable")
    graph = Template("t", reranking, {"top": reranking["top"]}).lower({})
    assert [primitive.hints for primitive in graph] == [("batchable",), ()]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Generation(question=QUESTION, hints="splittable"),
            "the hint 'splittable' needs a decode",
        ),
        (
            lambda: Generation(question=QUESTION, hints="batchable"),
            "the hint 'batchable' needs a step",
        ),
        (
            lambda: Searching(queries=QUESTION, collection=QUESTION, hints=["batchable"]),
            "the hint 'batchable' needs a step",
        ),
        (lambda: Generation(question=QUESTION, hints="fast"), "there is no hint 'fast'; there are batchable"),
        (lambda: Generation(question=QUESTION, hints=3), "hints must be names, got 3"),
        (lambda: Generation(question=QUESTION, passes="none, all"), "there is no pass 'none'"),
        (lambda: Generation(question=QUESTION, timeout_s=10**400), "timeout_s is 1000"),
        (lambda: Generation(question=QUESTION, timeout_s=0), "timeout_s is 0; it must be positive"),
        (lambda: Generation(question=QUESTION, timeout_s="1"), "timeout_s is '1'; it must be positive"),
        (lambda: Generation(question=QUESTION, retries=-1), "retries is -1; it must be a whole number"),
        (lambda: Generation(question=QUESTION, retries=True), "retries is True; it must be a whole number"),
        (lambda: Generation(question=QUESTION, backoff_s=-1), "backoff_s is -1; it must be finite"),
        (lambda: Generation(question=QUESTION, fallback="llm"), "fallback='llm' must name an engine of the"),
        (
            lambda: Searching(queries=QUESTION, collection=QUESTION, fallback="b"),
            "fallback='b' must be ENGINE:b, with one of the",
        ),
        (
            lambda: Searching(queries=QUESTION, collection=QUESTION, fallback="llm:b"),
            "fallback='llm:b' must name an engine",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_when_the_app_is_built(make: Any, message: str) -> None:
    component: Component = make()
    with pytest.raises(ConfigError) as caught:
        Template("t", component, {"out": component[next(iter(component.outs))]})
    assert str(caught.value).startswith(f"{component.name}: {message}")


def test_passes_change_only_the_steps_that_allow_them() -> None:
    app = advanced_rag()
    everything = {name: {"passes": "none"} for name in (c.name for c in app.components)}
    untouched = app.lower(everything)
    assert optimise(untouched, {}, PASSES) is untouched
    graph = optimise(app.lower({"searching": {"passes": "none"}}), {}, PASSES)
    assert {after for _, after in graph.order} == {"query_vectors"}
    assert graph.by_name["query_vectors"].args[0].piece is None
    assert graph.by_name["vectors"].args[0].piece is not None
    assert optimise(app.lower({}), {}, PASSES).by_name["query_vectors"].args[0].piece == 1


def test_explain_prints_them_and_they_parse_back() -> None:
    graph = indexing_app(retries=2, fallback="embedding:backup").lower({})
    text = print_graph(graph)
    assert '@embedding #batchable with {"retries": 2, "fallback": "backup"}\n' in text
    assert parse_graph(text) == graph
    assert " with " not in print_graph(indexing_app().lower({}))


class Shout(Component):
    """A component with one step."""

    ports = (Port("text", "text"),)
    outs = {"loud": "text"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        step = build.add("loud", "call", (build.take("text"),), engine="acting", config={"result": "text"})
        return {"loud": step}


class Broken:
    """A `BatchEngine` that fails always."""

    def __init__(self, batches: list[int]) -> None:
        self._batches = batches

    def run(self, tasks: Sequence[Task]) -> list[object]:
        self._batches.append(len(tasks))
        raise ValueError("broken")

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...


@in_virtual_time
async def test_a_fallback_engine_answers_what_its_own_engine_cannot() -> None:
    shout = Shout(text=Input("text", "text"), retries=2, backoff_s=3.0, fallback="backup")
    app = Template("shout", shout, {"loud": shout["loud"]})
    batches: list[int] = []
    broken = deploy("acting", Broken, batches, runs_in="loop")
    backup = acting(runs_in="loop").changed(name="backup")
    async with Runtime([broken, backup]) as runtime:
        began_s = asyncio.get_running_loop().time()
        assert await runtime.run(app, {"text": "a"}) == {"loud": "A"}
        assert asyncio.get_running_loop().time() - began_s == 3.0 + 6.0
        assert len(batches) == 3
        with pytest.raises(EngineFailure, match="broken"):
            await runtime.run(app, {"text": "a"}, configuration={"shout": {"fallback": None, "retries": 0}})
        assert len(batches) == 4
    async with Runtime([broken]) as runtime:
        with pytest.raises(ConfigError, match="there is no engine 'backup'"):
            await runtime.run(app, {"text": "a"})
