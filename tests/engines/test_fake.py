from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.llm_running import drain, task, value

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.model.errors import BadReply, EngineUnavailable
from stretto.model.tasks import Decode, Done, Failed, Task
from stretto.model.values import Chunk, Document, Hit, Section, Segment, document_order

DOCUMENT = Document("a.txt", (Section("one two three four five", "Numbers"), Section("six", page=2)), "00")
CHUNKS = [Chunk("a.txt", index, f"text {index}") for index in range(6)]
PROMPT = (Segment("Say:"), Segment("hello", "text"))


def batch(
    op: str,
    inputs: Mapping[str, object],
    num_items: int | None = None,
    each: tuple[str, ...] = (),
    query: str = "q",
    **config: object,
) -> Task:
    return Task(0, query, op, op, inputs, config, num_items, each)


def ingest(chunks: list[Chunk], collection: str = "") -> Task:
    (vectors,) = FakeBatch(FakeBatchConfig()).run(
        [batch("embed", {"texts": chunks}, len(chunks), ("texts",))]
    )
    inputs = {"chunks": chunks, "vectors": vectors}
    return batch("ingest", inputs, len(chunks), ("chunks", "vectors"), collection=collection)


def search(query: str = "q", collection: str = "", k: int = 4) -> Task:
    return batch("search", {"queries": (1, 2, 3)}, query=query, collection=collection, k=k)


def test_chunks_count_over_the_document_and_never_cross_sections() -> None:
    (chunks,) = FakeBatch(FakeBatchConfig()).run([batch("chunk", {"files": DOCUMENT}, tokens=3)])
    assert chunks == [
        Chunk("a.txt", 0, "one two three", "Numbers", None, "00", 3),
        Chunk("a.txt", 1, "four five", "Numbers", None, "00", 3),
        Chunk("a.txt", 2, "six", None, 2, "00", 3),
    ]


def test_mapped_task_answers_item_by_item() -> None:
    engine = FakeBatch(FakeBatchConfig())
    one, two, both = engine.run(
        [
            batch("embed", {"texts": "one"}),
            batch("embed", {"texts": "two"}),
            batch("embed", {"texts": ["one", "two"]}, 2, ("texts",)),
        ]
    )
    assert both == [one, two]
    assert engine.run([batch("call", {"a": [1, 2], "b": "x"}, 2, ("a",))]) == [[(1, "x"), (2, "x")]]
    assert engine.run([batch("transform", {"value": ["a", 2]}, 2, ("value",))]) == [["a", "2"]]


@given(st.permutations(CHUNKS), st.integers(0, 6))
def test_search_does_not_depend_on_the_order_of_ingestion(chunks: list[Chunk], cut: int) -> None:
    engine, other = FakeBatch(FakeBatchConfig()), FakeBatch(FakeBatchConfig())
    engine.run([ingest(CHUNKS)])
    other.run([ingest(chunks[:cut]), ingest(chunks[cut:])])
    hits = engine.run([search(k=4)])
    assert hits == other.run([search(k=4)])
    assert hits[0] == document_order(hits[0])  # type: ignore[arg-type]


def test_collection_of_a_query_goes_with_it_and_a_named_one_stays() -> None:
    engine = FakeBatch(FakeBatchConfig())
    engine.run([ingest(CHUNKS), ingest(CHUNKS, collection="named")])
    assert engine.run([search(query="other")]) == [[]]
    engine.release("q")
    assert engine.run([search()]) == [[]]
    assert len(engine.run([search(query="other", collection="named", k=6)])[0]) == 6  # type: ignore[arg-type]


def test_rerank_orders_the_hits_it_got() -> None:
    hits = [Hit(chunk, 0.0) for chunk in CHUNKS]
    (ranked,) = FakeBatch(FakeBatchConfig()).run([batch("rerank", {"question": "why?", "hits": hits})])
    assert isinstance(ranked, list)
    assert ranked == document_order(ranked)
    assert {hit.chunk for hit in ranked} == set(CHUNKS)


def test_batch_fails_as_told() -> None:
    engine = FakeBatch(
        FakeBatchConfig(fail_on=lambda task: EngineUnavailable("x") if task.op == "call" else None)
    )
    assert engine.run([batch("embed", {"texts": "one"})])
    with pytest.raises(EngineUnavailable):
        engine.run([batch("call", {"a": 1})])


def test_op_on_wrong_values_is_a_bad_reply_that_names_them() -> None:
    with pytest.raises(BadReply, match=r"cannot run rerank on \{'question': 'int'\}"):
        FakeBatch(FakeBatchConfig()).run([batch("rerank", {"question": 3})])


NO_TAGS = st.text(st.characters(exclude_characters="<[", exclude_categories=["Cs"]), max_size=20)
"""Texts without the tags of thoughts: an answer to one that ends with a tag is taken for thoughts."""


@given(NO_TAGS, st.integers(1, 6), st.integers(1, 6))
def test_llm_lists_keep_their_limits(text: str, max_items: int, max_tokens: int) -> None:
    decode = Decode(max_tokens=max_tokens, items="json_list", max_items=max_items)
    items = value(FakeLLM(FakeLLMConfig()), (Segment(text),), decode)
    assert isinstance(items, list)
    assert 1 <= len(items) <= min(max_items, max_tokens)
    assert items == value(FakeLLM(FakeLLMConfig()), (Segment(text, "name"),), decode)


def test_llm_answer_depends_on_prompt_and_decoding() -> None:
    llm = FakeLLM(FakeLLMConfig())
    answers = [
        value(llm, PROMPT, Decode()),
        value(llm, PROMPT, Decode(seed=1)),
        value(llm, PROMPT[:1], Decode()),
    ]
    assert len(set(map(str, answers))) == 3


@pytest.mark.parametrize("decode", [None, Decode()])
def test_llm_fails_one_task_or_crashes_as_told(decode: Decode | None) -> None:
    failing = FakeLLM(FakeLLMConfig(fail_on=lambda task: EngineUnavailable("x") if task.id == 1 else None))
    for number in range(3):
        failing.admit(task(number, PROMPT, decode), ())
    endings = {event.task: event for event in drain(failing) if isinstance(event, Done | Failed)}
    assert [type(endings[number]) for number in range(3)] == [Done, Failed, Done]
    crashing = FakeLLM(FakeLLMConfig(fail_on=lambda _: RuntimeError("died")))
    crashing.admit(task(1, PROMPT, decode), ())
    with pytest.raises(RuntimeError, match="died"):
        crashing.step()
