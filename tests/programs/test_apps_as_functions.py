"""Apps as functions on variables."""

from __future__ import annotations

import pytest
from support.programs import Desk, desk_llm
from support.virtual_loop import in_virtual_time

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto import Deployment, Document, Runtime, Section, deploy
from stretto import programs as P
from stretto.apps import naive_rag, search_empowered
from stretto.model.errors import ConfigError, UserError
from stretto.model.values import Hit


@P.SemanticFunction
def rewrite(question: P.SemanticVariable) -> None:
    """Rewrite: {{question}} {{output:query}}"""


@P.SemanticFunction
def check(answer: P.SemanticVariable, sources: P.SemanticVariable) -> None:
    """Is this safe? {{answer}} ({{sources}}) {{output:verdict}}"""


def engines(desk: Desk, *names: str) -> list[Deployment]:
    fakes = [
        deploy(name, FakeBatch, FakeBatchConfig(), runs_in="loop", keeps_state=name == "vectors")
        for name in names
    ]
    llm = desk_llm(desk, in_thread=False)
    return [*fakes, llm, llm.changed(name="llm_small")]


def answer(prompt: str) -> str:
    for beginning, said in (("Rewrite", "better"), ("Is this safe", "safe")):
        if prompt.startswith(beginning):
            return said
    return "no"


@in_virtual_time
async def test_a_search_between_calls_is_one_graph_and_one_trip() -> None:
    """The search of the paper's Figure 1c: intention, search, answer, safety check."""
    desk = Desk(answer)
    search = P.App(search_empowered())
    async with Runtime(engines(desk, "web")) as runtime, P.Client(runtime):
        found, sources = search(question=rewrite("q"))
        verdict = check(found, sources)
        assert await verdict == "safe"
        hits = await sources
        assert isinstance(hits, list)
        assert all(isinstance(hit, Hit) for hit in hits)
        assert len(runtime.plan_cache._plans) == 1
    assert any("Page 0 on better" in prompt for prompt in desk.prompts)
    assert desk.prompts[-1].startswith("Is this safe? no (Page ")


@in_virtual_time
async def test_documents_are_values_and_settings_are_those_of_the_app() -> None:
    desk = Desk(answer)
    names = ("chunking", "embedding", "vectors", "reranking")
    files = [Document("a.txt", (Section("The captain lived at the inn."),), "00")]
    async with Runtime(engines(desk, *names)) as runtime, P.Client(runtime):
        for top_k, num_hits in ((3, 3), (1, 1)):
            found, sources = P.App(
                naive_rag(), {"searching": {"top_k": top_k}, "indexing": {"tokens": 16, "overlap": 0}}
            )(question="Where?", files=files * 3)
            assert await found == "no"
            assert 1 <= len(await sources) <= num_hits


@in_virtual_time
async def test_the_order_of_an_app_is_kept_until_a_pass_prunes_it() -> None:
    app = P.App(search_empowered())
    orders = []
    for passes in ("none", "all"):
        async with Runtime(engines(Desk(answer), "web")) as runtime, P.Client(runtime, passes=passes):
            found, _ = app(question="q")
            assert await found == "no"
            (plan,) = runtime.plan_cache._plans.values()
            orders.append(plan.graph.order)
    assert ("search_empowered.proxy", "search_empowered.verdict.prompt") in orders[0]
    assert orders[1] == ()


@in_virtual_time
async def test_what_does_not_fit_an_app_is_refused() -> None:
    app = P.App(search_empowered())
    with pytest.raises(UserError, match="an app is made of a Template"):
        P.App("search")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no component 'x'"):
        P.App(search_empowered(), {"x": {}})
    async with Runtime(engines(Desk())) as runtime, P.Client(runtime):
        with pytest.raises(UserError, match="search_empowered: there is no input 'question'"):
            app()
        with pytest.raises(UserError, match="search_empowered has no input 'q'; it has question"):
            app(question="x", q="y")
        with pytest.raises(ConfigError, match="search_empowered: there is no engine 'web'"):
            app(question="x")
