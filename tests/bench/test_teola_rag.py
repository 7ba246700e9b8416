"""The apps by hand, and the schemes with real engines, at toy size."""

import asyncio

import pytest

from stretto.apps import advanced_rag, naive_rag, search_empowered
from stretto.bench.hand_written.programs import Program
from stretto.bench.hand_written.servers import serving
from stretto.bench.teola.schemes import HAND_WRITTEN, OURS
from stretto.core import Document, Section
from stretto.engine import Engine
from stretto.engines.corpus_search import CorpusSearch, CorpusSearchConfig
from stretto.engines.fake import FakeBatch, FakeBatchConfig
from stretto.engines.standin import StandIn, StandInConfig
from stretto.errors import EngineFailure
from stretto.runtime.runtime import Runtime

DOCUMENTS = [
    Document(
        f"{n}.txt", (Section(" ".join(f"The river {n}-{i} runs to the sea." for i in range(120))),), f"{n}"
    )
    for n in range(3)
]
QUESTION = "Where does the river run to?"


def engines(fail: bool = False) -> list[Engine]:
    def fail_on(task: object) -> EngineFailure | None:
        return EngineFailure("broken") if fail and task.op == "embed" else None  # type: ignore[attr-defined]

    batch = [
        Engine(name, FakeBatch, FakeBatchConfig(fail_on), keeps_state=name == "vectors", max_batch=8)
        for name in ("chunking", "embedding", "vectors", "reranking")
    ]
    web = Engine("web", CorpusSearch, CorpusSearchConfig(tuple(DOCUMENTS)))
    return [
        *batch,
        web,
        *(Engine(name, StandIn, StandInConfig(), kind="llm") for name in ("llm", "llm_small")),
    ]


def test_programs_answer_what_the_apps_do() -> None:
    pytest.importorskip("bm25s")

    async def both() -> tuple[list[object], list[object]]:
        async with Runtime(engines()) as runtime:
            inputs = {"question": QUESTION, "files": DOCUMENTS}
            apps = [
                await runtime.run(naive_rag(), inputs, configuration={"synthesis": {"max_tokens": 40}}),
                await runtime.run(advanced_rag(), inputs, configuration={"synthesis": {"max_tokens": 40}}),
                await runtime.run(
                    search_empowered(),
                    {"question": QUESTION},
                    configuration={"proxy": {"max_tokens": 40}, "answer": {"max_tokens": 40}},
                ),
            ]
        async with serving(engines()) as servers:
            first, second, third = (Program(servers, f"q{n}", 40, 8) for n in range(3))
            by_hand = list(
                await asyncio.gather(
                    first.naive(QUESTION, DOCUMENTS),
                    second.advanced(QUESTION, DOCUMENTS),
                    third.search(QUESTION),
                )
            )
            for n in range(3):
                await servers.end(f"q{n}")
        return apps, by_hand

    apps, by_hand = asyncio.run(both())
    assert by_hand == apps


def test_what_fails_is_raised_and_the_server_goes_on() -> None:
    pytest.importorskip("bm25s")

    async def run() -> None:
        async with serving(engines(fail=True)) as servers:
            with pytest.raises(EngineFailure, match="broken"):
                await Program(servers, "q", 8, 8).naive(QUESTION, DOCUMENTS)
            assert await servers.batch["chunking"].each("q", "chunk", {"files": DOCUMENTS[:1]}, {"tokens": 9})

    asyncio.run(run())


def test_schemes_run_for_real() -> None:
    for package in ("sentence_transformers", "bm25s", "tokenizers"):
        pytest.importorskip(package)
    from stretto.bench.checkpoint import TINY
    from stretto.bench.rag import LATENCIES, SPEED_UPS, SPREADS, Size, measure
    from stretto.bench.registry import Options

    schemes = (HAND_WRITTEN, OURS)
    size = Size(("search",), schemes, num_queries=1, rounds=1, max_chars=800, answer_tokens=4, shape=TINY)
    report = measure(size, Options())
    assert len(report.table(LATENCIES)) == len(report.table(SPEED_UPS)) == 2
    assert len(report.table(SPREADS)) == 4
    for row in report.table(LATENCIES).values():
        assert set(row.values) == {*schemes, "equal_answers"}
        assert row.values["equal_answers"] == "1 of 1"
    assert report.goals[0].met
