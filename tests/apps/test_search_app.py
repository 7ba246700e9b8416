"""Search-empowered generation: both branches, and the same result whatever the passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, combinations

import pytest

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.apps import search_empowered
from stretto.apps.components.component import Input
from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Template
from stretto.components import Generation, Judge, WebSearch
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.graph.passes.pipeline import PASSES
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import ConfigError, TemplateError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import ABSENT, Hit
from stretto.sim.driver import VirtualDriver

VERDICTS = ("yes", "Yes, it does.", "no", "No", "perhaps", "yesterday")
LLM = Profile(base_s=0.01, per_unit_s=0.001, per_output_s=0.02)


def answer(task: LLMTask, decode: Decode) -> str:
    texts = {segment.name: segment.text for segment in task.prompt if segment.name}
    if "text" in texts:
        return texts["question"].partition("?")[2]
    return f"of {texts['question']}" + (f" read {texts['context']}" if "context" in texts else " drafted")


def engines() -> list[Deployment]:
    def llm(name: str) -> Deployment:
        return deploy(
            name,
            lambda config: ScriptedLLM(answer, max_running=1),
            contract="llm",
            profile=LLM,
            keeps_state=True,
        )

    web = deploy("web", FakeBatch, FakeBatchConfig(), profile=Profile(base_s=0.3))
    return [llm("llm"), llm("llm_small"), web]


def run(question: str, passes: tuple[str, ...]) -> tuple[Mapping[str, object], VirtualDriver]:
    all_engines = engines()
    plan_cache = PlanCache({engine.name: engine.profile for engine in all_engines})
    driver = VirtualDriver(all_engines, check=True)
    driver.submit("q", plan_cache.plan(search_empowered(), {}, passes), {"question": question})
    reply = driver.run()["q"]
    assert reply.error is None
    assert reply.outputs is not None
    return reply.outputs, driver


def end_s(driver: VirtualDriver) -> float:
    end_s = driver.recorder.queries["q"].end_s
    assert end_s is not None
    return end_s


@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_searches_unless_the_draft_is_judged_good(verdict: str) -> None:
    question = f"Who?{verdict}"
    outputs, driver = run(question, ())
    searched = any(span.engine == "web" for span in driver.recorder.spans)
    assert searched == (verdict in ("no", "No", "perhaps", "yesterday"))
    if searched:
        sources = outputs["sources"]
        assert isinstance(sources, list)
        assert len(sources) == 4
        assert all(isinstance(hit, Hit) for hit in sources)
        assert outputs["answer"] == f"of {question} read " + "\n\n".join(hit.chunk.text for hit in sources)
    else:
        assert outputs["sources"] is ABSENT
        assert outputs["answer"] == f"of {question} read of {question} drafted"


@pytest.mark.parametrize("verdict", ["yes", "no"])
def test_passes_change_nothing_but_the_time(verdict: str) -> None:
    subsets = chain.from_iterable(combinations(PASSES, size) for size in range(len(PASSES) + 1))
    plain, driver = run(f"Who?{verdict}", ())
    for passes in subsets:
        assert run(f"Who?{verdict}", passes)[0] == plain, passes
    assert end_s(run(f"Who?{verdict}", tuple(PASSES))[1]) < end_s(driver)


def test_several_queries_are_searched_one_by_one() -> None:
    queries = Input("queries", "list[text]")
    search = WebSearch(queries=queries, top_k=2)
    graph = Template("t", search, {"hits": search["hits"]}).lower({})
    (found,) = graph.primitives
    assert found.args[0].each
    assert found.arg("when") is None


@pytest.mark.parametrize(
    "make", [lambda: WebSearch(top_k=0), lambda: Judge(max_tokens=0), lambda: Generation(max_tokens=0)]
)
def test_unusable_settings_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_a_prompt_must_read_what_the_component_is_fed() -> None:
    with pytest.raises((ConfigError, TemplateError), match="context"):
        Template(
            "t",
            (generation := Generation(question=Input("q", "text"), context=Input("c", "text"))),
            {"a": generation["text"]},
        )
