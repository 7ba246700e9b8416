"""Advanced RAG over 666 chunks, as the design works it out, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import pytest
from support.graphs import ADVANCED_RAG

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.graph.compile import compile_graph
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.text import parse_graph
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Document, Section
from stretto.sched.actions import Admit, Reply, StartBatch
from stretto.sim.driver import VirtualDriver
from stretto.trace.recorder import Span

PROFILES = {
    "cpu": Profile(0.008, 0.0, 32),
    "embedding": Profile(0.034, 0.001, 128),
    "vectors": Profile(0.002, 0.0003, 128),
    "rerank": Profile(0.005, 0.003, 64),
    "llm": Profile(0.020, 0.0003, 128, 0.18),
}
WORDS = " ".join(f"word{i}" for i in range(666 * 4))
INPUTS = {"question": "which words come first", "files": [Document("a.txt", (Section(WORDS),), "0")]}


def write(task: LLMTask, decode: Decode) -> str:
    """Return three queries, or an answer that depends on all of the prompt."""
    if decode.items is not None:
        return '["ante", "bell", "cave"]'
    return f"{crc32(''.join(segment.text for segment in task.prompt).encode()):08x}"


def driver(passes: Sequence[str] = tuple(PASSES)) -> VirtualDriver:
    """Return a driver with one query, submitted at 0."""
    engines = [
        deploy(name, FakeBatch, FakeBatchConfig(), profile=profile, keeps_state=name == "vectors")
        for name, profile in PROFILES.items()
        if name != "llm"
    ]
    engines.append(
        deploy(
            "llm",
            lambda _: ScriptedLLM(write, max_running=16),
            contract="llm",
            instances=2,
            profile=PROFILES["llm"],
            keeps_state=True,
        )
    )
    new = VirtualDriver(engines, check=True)
    graph = optimise(parse_graph(ADVANCED_RAG), PROFILES, {n: p for n, p in PASSES.items() if n in passes})
    new.submit("17", compile_graph(graph, PROFILES), INPUTS, passes=tuple(passes))
    return new


@pytest.fixture(scope="module")
def done() -> VirtualDriver:
    finished = driver()
    reply = finished.run()["17"]
    assert reply.error is None
    return finished


def spans(done: VirtualDriver, engine: str, step: str) -> list[Span]:
    return [
        span
        for span in done.recorder.spans
        if span.engine == engine and any(p.step == step for p in span.parts)
    ]


def test_the_first_actions(done: VirtualDriver) -> None:
    """All that needs only the question starts at once, the longest way first and with the smallest rank."""
    first = [action for at_s, action in done.actions if at_s == 0.0]
    batches = [(a.engine, [task.step for task in a.tasks]) for a in first if isinstance(a, StartBatch)]
    admitted = [(a.rank, a.task.step) for a in first if isinstance(a, Admit)]
    assert batches == [("cpu", ["chunks"])]
    assert [step for _, step in admitted] == ["queries", "kv1.1", "kv2.1"]
    assert admitted == sorted(admitted)
    places = {a.task.step: a.instance for a in first if isinstance(a, Admit)}
    assert places["queries"] != places["kv1.1"] == places["kv2.1"], (
        "the long decode has an instance to itself"
    )


def test_six_pieces_are_embedded_and_ingested_in_step(done: VirtualDriver) -> None:
    embedded = spans(done, "embedding", "vectors")
    assert [sum(p.num_items for p in span.parts) for span in embedded][:5] == [128] * 5
    assert sum(p.num_items for span in embedded for p in span.parts if p.step == "vectors") == 666
    ingested = spans(done, "vectors", "indexed")
    assert embedded[0].end_s is not None
    assert ingested[0].start_s == embedded[0].end_s, "as soon as the first piece is embedded"


def test_the_first_query_takes_the_slots_that_chunks_leave(done: VirtualDriver) -> None:
    """Chunks are one step further from the answer, so they go first; no slot idles while a query waits."""
    joined = next(span for span in done.recorder.spans if any(p.step == "qvectors" for p in span.parts))
    assert [(p.step, p.num_items) for p in joined.parts] == [
        ("vectors", 666 - 5 * 128),
        ("qvectors", 1),
        ("qvectors", 1),
    ]
    assert joined is spans(done, "embedding", "vectors")[-1]
    pieces_s = spans(done, "llm", "queries")[0].marks_s
    assert len(pieces_s) == 3
    assert pieces_s[0] < joined.start_s < pieces_s[2], "while the third is still being decoded"


def test_searches_wait_for_the_index_and_then_start_at_once(done: VirtualDriver) -> None:
    ingested_s = max(span.end_s or 0.0 for span in spans(done, "vectors", "indexed"))
    searches = spans(done, "vectors", "hits")
    assert min(span.start_s for span in searches) == ingested_s
    assert min(span.start_s for span in spans(done, "rerank", "scored")) == searches[0].end_s


def test_the_shared_head_is_computed_once(done: VirtualDriver) -> None:
    """kv2 and kv3 begin alike: one prefill, two forks."""
    assert len(spans(done, "llm", "kv2.1")) == 1
    assert spans(done, "llm", "kv3.1") == []
    assert len(spans(done, "llm", "kv3.2")) == 1


def test_the_answer_is_that_of_the_plain_graph_and_comes_sooner(done: VirtualDriver) -> None:
    plain = driver(())
    assert plain.run()["17"].outputs == done.replies["17"].outputs
    ends = [d.recorder.queries["17"].end_s or 0.0 for d in (done, plain)]
    assert ends[0] < 0.9 * ends[1]


@pytest.mark.parametrize("at_s", [0.0, 0.05, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0])
def test_the_death_of_an_llm_instance_changes_nothing(done: VirtualDriver, at_s: float) -> None:
    """The requests of the dead instance carry their whole prompts to another one."""
    for instance in (0, 1):
        hurt = driver()
        hurt.lose("llm", instance, at_s)
        assert hurt.run()["17"] == done.replies["17"]
        assert sum(isinstance(action, Reply) for _, action in hurt.actions) == 1
        assert hurt.system.is_idle()
