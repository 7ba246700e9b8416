"""What every batch engine promises, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.own_engines import Shouting, ShoutingConfig

from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.engines.batch.reranking import Reranking, RerankingConfig
from stretto.engines.batch.transforms import Transforms, TransformsConfig
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.engines.contract import BatchEngine
from stretto.model.errors import BadReply, ConfigError, EngineFailure, StrettoError
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Hit, Section

Inputs = Mapping[str, object]
CHUNKS = [Chunk("b.txt", index, f"text {index}", document_sha256="s", num_chunks=4) for index in range(4)]
VECTORS = [np.eye(4, dtype=np.float32)[index] for index in range(4)]
QUERIES = [np.array(query, np.float32) for query in ([1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.1, 0.9])]


@dataclass
class Case:
    """An op of an engine: items to apply it to, and an input of a type it cannot take."""

    engine: BatchEngine
    op: str
    items: Sequence[Inputs]
    wrong: Inputs
    shared: Inputs = field(default_factory=dict)
    config: Inputs = field(default_factory=dict)

    def single(self, item: int, query: str = "q") -> Task:
        inputs = {**self.shared, **self.items[item]}
        return Task(item, query, "the step", self.op, inputs, self.config)

    def mapped(self, items: Sequence[int], query: str = "q") -> Task:
        ports = tuple(self.items[0])
        lists = {port: [self.items[item][port] for item in items] for port in ports}
        inputs = {**self.shared, **lists}
        return Task(99, query, "the step", self.op, inputs, self.config, len(items), ports)


def _document(name: str, num_sentences: int) -> Document:
    sentences = " ".join(f"Sentence number {n} of {name} says a little." for n in range(num_sentences))
    return Document(name, (Section(sentences),), sha256=f"sha of {name}")


def _chunk(request: pytest.FixtureRequest) -> Case:
    items = [{"files": _document(name, size)} for name, size in (("a", 50), ("b", 1), ("c", 9))]
    engine = request.getfixturevalue("chunking")
    return Case(engine, "chunk", items, {"files": "text"}, config={"tokens": 64, "overlap": 16})


def _embed(request: pytest.FixtureRequest) -> Case:
    items: list[Inputs] = [{"texts": "hello"}, {"texts": CHUNKS[0]}, {"texts": Hit(CHUNKS[1], 0.5)}]
    return Case(request.getfixturevalue("embedding"), "embed", items, {"texts": VECTORS[0]})


def _ingest(engine: BatchEngine, **shared: object) -> Case:
    items = [{"chunks": chunk, "vectors": vector} for chunk, vector in zip(CHUNKS, VECTORS, strict=True)]
    return Case(engine, "ingest", items, {"chunks": "text", "vectors": VECTORS[0]}, shared)


def _search(engine: BatchEngine) -> Case:
    case = _ingest(engine, collection="contract")
    engine.run([case.mapped(range(4))])
    items = [{"queries": query} for query in QUERIES]
    return Case(engine, "search", items, {"queries": "text"}, case.shared, {"k": 2})


def _rerank(request: pytest.FixtureRequest) -> Case:
    hits = [Hit(chunk, 0.1 * chunk.index) for chunk in CHUNKS]
    items: list[Inputs] = [{"hits": hits}, {"hits": hits[:1]}, {"hits": []}]
    engine = Reranking(RerankingConfig())
    return Case(engine, "rerank", items, {"hits": ["text"]}, {"question": "which text is number 2?"})


def _call(request: pytest.FixtureRequest) -> Case:
    engine = Calls(CallsConfig({"add": lambda a, b: a + b}))
    items = [{"a": number} for number in (1, 2, 3)]
    return Case(engine, "call", items, {"a": "text"}, {"b": 10}, {"function": "add"})


def _transform(request: pytest.FixtureRequest) -> Case:
    items = [{"value": text} for text in ("1, 2", "3", "a, b")]
    engine = Transforms(TransformsConfig())
    return Case(engine, "transform", items, {"value": VECTORS[0]}, config={"steps": ("comma",)})


_TEXTS = [{"texts": text} for text in ("one", "two", "three")]
CASES: Mapping[str, Callable[[pytest.FixtureRequest], Case]] = {
    "chunk": _chunk,
    "embed": _embed,
    "memory ingest": lambda request: _ingest(MemoryVectors(MemoryVectorsConfig())),
    "memory search": lambda request: _search(MemoryVectors(MemoryVectorsConfig())),
    "postgres ingest": lambda request: _ingest(request.getfixturevalue("postgres"), collection="contract"),
    "postgres search": lambda request: _search(request.getfixturevalue("postgres")),
    "rerank": _rerank,
    "call": _call,
    "transform": _transform,
    "own": lambda request: Case(Shouting(ShoutingConfig()), "shout", _TEXTS, {"texts": VECTORS[0]}),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    case = CASES[request.param](request)
    yield case
    case.engine.release("q")


def assert_same(a: Any, b: Any) -> None:
    """Equal values; vectors and scores up to float rounding."""
    assert type(a) is type(b)
    if isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, np.ndarray):
        np.testing.assert_allclose(a, b, atol=1e-6)
    elif isinstance(a, Hit):
        assert a.chunk == b.chunk
        assert a.score == pytest.approx(b.score, abs=1e-6)
    else:
        assert a == b


def answers(case: Case, *tasks: Task) -> list[object]:
    """The answers to tasks; an error in place of one is raised."""
    found = list(case.engine.run(tasks))
    for answer in found:
        if isinstance(answer, StrettoError):
            raise answer
    return found


def test_mapped_task_answers_what_single_tasks_answer_in_order(case: Case) -> None:
    singles = answers(case, *(case.single(item) for item in range(3)))
    (mapped,) = answers(case, case.mapped(range(3)))
    assert_same(mapped, singles)


def test_order_of_answers_is_order_of_tasks(case: Case) -> None:
    forward = answers(case, case.single(0), case.single(1), case.single(2))
    backward = answers(case, case.single(2), case.single(1), case.single(0))
    assert_same(forward, backward[::-1])


def test_batch_of_several_queries_answers_as_alone(case: Case) -> None:
    tasks = [case.mapped([1, 0]), case.single(2, query="other"), case.mapped([]), case.mapped([2])]
    assert_same(answers(case, *tasks), [answer for task in tasks for answer in answers(case, task)])
    case.engine.release("other")


def test_mapped_task_without_items_answers_an_empty_list(case: Case) -> None:
    assert answers(case, case.mapped([])) == [[]]


def test_empty_batch_has_no_answers(case: Case) -> None:
    assert answers(case) == []


def test_unknown_op_is_a_config_error(case: Case) -> None:
    task = Task(1, "q", "the step", "levitate", {}, case.config)
    with pytest.raises(ConfigError, match="levitate"):
        answers(case, case.single(0), task)


def test_wrong_type_is_a_failure_that_names_the_step(case: Case) -> None:
    task = Task(1, "q", "the step", case.op, {**case.shared, **case.wrong}, case.config)
    with pytest.raises(EngineFailure, match="the step"):
        answers(case, task)


def test_mapped_port_of_another_length_is_a_bad_reply(case: Case) -> None:
    task = case.mapped([0, 1])
    with pytest.raises(BadReply, match="3 items"):
        answers(case, Task(1, "q", "the step", task.op, task.inputs, task.config, 3, task.each))


def test_engine_works_after_an_error(case: Case) -> None:
    before = answers(case, case.single(0))
    with pytest.raises(StrettoError):
        answers(case, Task(1, "q", "s", case.op, {**case.shared, **case.wrong}, case.config))
    assert_same(answers(case, case.single(0)), before)


def test_release_can_be_called_again_and_for_unknown_queries(case: Case) -> None:
    case.engine.release("q")
    case.engine.release("q")
    case.engine.release("never seen")
    answers(case, case.single(0))


def test_close_can_be_called_again(case: Case, request: pytest.FixtureRequest) -> None:
    case.engine.close()
    case.engine.close()


# Calls have little else to test.


def _call_task(function: object, **inputs: object) -> Task:
    return Task(1, "q", "the step", "call", inputs, {"function": function})


def test_failing_function_is_named_with_its_cause() -> None:
    def divide(a: int) -> float:
        return a / 0

    with pytest.raises(EngineFailure, match=r"the step.*'divide'.*ZeroDivisionError") as failure:
        Calls(CallsConfig({"divide": divide})).run([_call_task("divide", a=1)])
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("name", ["multiply", None, 3])
def test_unknown_function_is_a_config_error_before_anything_is_called(name: object) -> None:
    called: list[int] = []
    engine = Calls(CallsConfig({"note": called.append}))
    with pytest.raises(ConfigError):
        engine.run([_call_task("note", object=1), _call_task(name)])
    assert called == []
