"""Synthetic answers of batch engines: the shapes of real ones, and the same in every run."""

from __future__ import annotations

import pytest

from benchmarks.common.fake_engines import FakeBatch
from benchmarks.common.virtual_engines import Lengths, documents, inputs, profiles_of, virtual_engines
from stretto.apps import APPS
from stretto.apps.plan_cache import PlanCache
from stretto.graph.passes.pipeline import PASSES
from stretto.model.deployment import Deployment
from stretto.model.errors import BadReply
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit
from stretto.sim.driver import VirtualDriver
from stretto.sim.synthetic_batches import SyntheticBatch, SyntheticConfig


def synthetic_engines() -> list[Deployment]:
    return [
        deployment.changed(executable=SyntheticBatch, config=SyntheticConfig())
        if deployment.replicas[0].executable is FakeBatch
        else deployment
        for deployment in virtual_engines(Lengths())
    ]


@pytest.mark.parametrize("app", sorted(APPS))
def test_an_app_gives_the_same_answer_whatever_the_passes(app: str) -> None:
    engines = synthetic_engines()
    plan_cache = PlanCache(profiles_of(engines))
    outputs = []
    for passes in ((), tuple(PASSES)):
        driver = VirtualDriver(engines)
        driver.submit("q", plan_cache.plan(APPS[app](), {}, passes), inputs(9))
        reply = driver.run()["q"]
        assert reply.error is None
        outputs.append(reply.outputs)
    assert outputs[0] == outputs[1]
    assert outputs[0] is not None
    sources = outputs[0]["sources"]
    assert isinstance(sources, list)
    assert all(isinstance(hit, Hit) for hit in sources)
    assert len({hit.chunk.index for hit in sources}) == len(sources) == 3


def task(op: str, config: dict[str, object] | None = None, **given: object) -> Task:
    return Task(1, "q", "step", op, given, config or {})


def test_chunks_cover_the_document_or_have_the_lengths_asked_for() -> None:
    (document,) = documents(5)
    text = "".join(section.text for section in document.sections)
    engine = SyntheticBatch(SyntheticConfig())
    (chunks,) = engine.run([task("chunk", {"tokens": 100}, files=document)])
    assert isinstance(chunks, list)
    assert "".join(chunk.text for chunk in chunks) == text
    assert {len(chunk.text) for chunk in chunks[:-1]} == {400}
    given = SyntheticBatch(SyntheticConfig(lambda query, document: (7, 3)))
    (chunks,) = given.run([task("chunk", files=document)])
    assert isinstance(chunks, list)
    assert [len(chunk.text) for chunk in chunks] == [7, 3]


def test_a_collection_goes_with_its_query() -> None:
    engine = SyntheticBatch(SyntheticConfig())
    for index in range(3):
        engine.run([task("ingest", chunks=Chunk("a", index, f"text {index}"), vectors=(index,))])
    (hits,) = engine.run([task("search", {"k": 2}, queries=(4,))])
    assert isinstance(hits, list)
    assert [hit.chunk.index for hit in hits] == [1, 2]
    engine.release("q")
    assert engine.run([task("search", {"k": 2}, queries=(4,))]) == [[]]


def test_what_it_cannot_answer_it_refuses() -> None:
    with pytest.raises(BadReply, match="no synthetic answer to embed on nothing"):
        SyntheticBatch(SyntheticConfig()).run([task("embed", nothing=1)])
    with pytest.raises(BadReply, match="k is 0"):
        SyntheticBatch(SyntheticConfig()).run([task("search", {"k": 0}, queries=(1,))])


def test_a_transform_leaves_the_value_as_it_is() -> None:
    engine = SyntheticBatch(SyntheticConfig())
    assert engine.run([task("transform", {"steps": ("strip",)}, value=" a ")]) == [" a "]
