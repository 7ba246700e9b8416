"""The apps by hand, and the schemes with real engines, at toy size."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from benchmarks.common.scripted_apps import fresh_questions
from benchmarks.rag.hand_written.programs import HandWrittenProgram
from benchmarks.rag.hand_written.servers import serving
from benchmarks.teola.schemes import HAND_WRITTEN, OURS
from stretto.apps import advanced_rag, naive_rag, search_empowered
from stretto.engines.batch.corpus_search import CorpusSearch, CorpusSearchConfig
from stretto.engines.processor import Computing
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import EngineFailure
from stretto.model.tasks import Decode, LLMEvent, LLMTask
from stretto.model.values import Document, Section, Segment
from stretto.runtime.runtime import Runtime

pytest_plugins = ("support.llm_fixtures",)

DOCUMENTS = [
    Document(
        f"{n}.txt", (Section(" ".join(f"The river {n}-{i} runs to the sea." for i in range(120))),), f"{n}"
    )
    for n in range(3)
]
QUESTION = "Where does the river run to?"


def engines(fail: bool = False) -> list[Deployment]:
    def fail_on(task: object) -> EngineFailure | None:
        return EngineFailure("broken") if fail and task.op == "embed" else None  # type: ignore[attr-defined]

    batch = [
        deploy(name, FakeBatch, FakeBatchConfig(fail_on), keeps_state=name == "vectors", max_batch=8)
        for name in ("chunking", "embedding", "vectors", "reranking")
    ]
    web = deploy("web", CorpusSearch, CorpusSearchConfig(tuple(DOCUMENTS)))
    return [
        *batch,
        web,
        *(deploy(name, StandIn, StandInConfig(), contract="llm") for name in ("llm", "llm_small")),
    ]


def test_programs_answer_what_the_apps_do() -> None:
    pytest.importorskip("bm25s")

    async def both() -> tuple[Sequence[object], Sequence[object]]:
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
            first, second, third = (HandWrittenProgram(servers, f"q{n}", 40, 8) for n in range(3))
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
                await HandWrittenProgram(servers, "q", 8, 8).naive(QUESTION, DOCUMENTS)
            assert await servers.batch["chunking"].each("q", "chunk", {"files": DOCUMENTS[:1]}, {"tokens": 9})

    asyncio.run(run())


class Dying(StandIn):
    """An engine whose first step is its last."""

    def step(self) -> list[LLMEvent]:
        raise RuntimeError("out of memory")


def llm_alone(executable: Callable[[Any], Any]) -> list[Deployment]:
    return [deploy("llm", executable, StandInConfig(), contract="llm")]


def test_nobody_waits_for_an_llm_that_has_died_and_it_computes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computing = Computing()
    monkeypatch.setattr("benchmarks.rag.hand_written.servers.COMPUTING", computing)

    async def run() -> None:
        async with serving(llm_alone(Dying)) as servers:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="out of memory"):
                    await servers.llm["llm"].complete("q", "answer", (Segment("Why?"),), Decode(4))

    asyncio.run(run())
    assert not computing.is_any_but(-1)


@pytest.mark.parametrize("number", [0, 1])
def test_what_ends_while_engines_are_made_leaves_no_thread(number: int) -> None:
    """Cancel while engines are made, as Ctrl-C does."""
    may_go_on, is_made = threading.Event(), threading.Event()

    def slow(config: object) -> Any:
        is_made.set()
        may_go_on.wait(60)
        return (FakeBatch(FakeBatchConfig()), StandIn(StandInConfig()))[number]

    engine = deploy("slow", slow, contract=("batch", "llm")[number])

    async def run() -> None:
        async def enter() -> None:
            async with serving([engine]):
                raise AssertionError("it was cancelled before")

        task = asyncio.create_task(enter())
        await asyncio.to_thread(is_made.wait, 60)
        task.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("slow")]


def test_requests_of_a_program_are_of_its_tenant() -> None:
    pytest.importorskip("bm25s")
    tenants = []

    class Noting(StandIn):
        def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
            tenants.append(task.tenant)
            super().admit(task, rank)

    async def run() -> None:
        noting = [deploy(name, Noting, StandInConfig(), contract="llm") for name in ("llm", "llm_small")]
        async with serving([*engines()[:-2], *noting]) as servers:
            await HandWrittenProgram(servers, "q", 8, 8, "round 1").search(QUESTION)

    asyncio.run(run())
    assert set(tenants) == {"round 1"}


def test_questions_are_different_and_repeat_with_their_seed() -> None:
    questions = fresh_questions(DOCUMENTS, 40, "a")
    assert len(set(questions)) == 40
    assert fresh_questions(DOCUMENTS, 40, "a") == questions
    assert not set(questions) & set(fresh_questions(DOCUMENTS, 40, "b"))
    short = [Document("1", (Section("word"),), "1")]
    assert len(set(fresh_questions(short, 3, "a"))) == 3


class Asked:
    """An engine that answers at once, and notes (app, question, tenant)."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str, str]] = []

    async def __call__(self, app: str, question: str, tenant: str) -> Mapping[str, object]:
        self.noted.append((app, question, tenant))
        return {"answer": question, "sources": []}


@pytest.mark.parametrize(("due_s", "num_rounds"), [(float("inf"), 3), (0.0, 1)])
def test_every_round_has_questions_and_a_cache_of_its_own(due_s: float, num_rounds: int) -> None:
    from benchmarks.rag.benchmark import ALONE, TOGETHER, RagSize, run_app
    from benchmarks.registry import BenchmarkOptions

    size = RagSize(num_queries=2, rounds=3)
    asks = {OURS: Asked(), HAND_WRITTEN: Asked()}
    results = asyncio.run(run_app(asks, "naive", size, DOCUMENTS, due_s, BenchmarkOptions()))
    noted = asks[OURS].noted
    assert sorted(asks[HAND_WRITTEN].noted) == sorted(noted)
    of_tenants: dict[str, set[str]] = {}
    for _, question, tenant in noted:
        of_tenants.setdefault(tenant, set()).add(question)
    assert [len(questions) for questions in of_tenants.values()] == [1, 2] + [2] * num_rounds
    assert len({question for _, question, _ in noted}) == len(noted)
    assert len(results["naive", ALONE][OURS].outputs) == 2
    assert len(results["naive", TOGETHER][OURS].seconds) == 2 * num_rounds


@pytest.mark.parametrize("caches", [True, False])
def test_only_who_caches_finds_a_prompt_again(tiny_checkpoint: Any, caches: bool) -> None:
    pytest.importorskip("torch")
    from benchmarks.common.scripted_transformer import ForgetfulLLM, ScriptedTransformer
    from stretto.engines.transformer.engine_config import TransformerConfig
    from stretto.model.tasks import Done

    config = TransformerConfig(tiny_checkpoint, block_tokens=4, keeps_released=True)
    llm = ScriptedTransformer(config) if caches else ForgetfulLLM(config)
    prompt = (Segment("The river runs to the sea. " * 4), Segment("Where?", "question"))
    cached = []
    for number, tenant in enumerate(("1", "1", "2")):
        llm.admit(LLMTask(number, f"q{number}", "answer", prompt, Decode(2), tenant), ())
        while llm.has_work():
            cached += [event.usage.num_cached_tokens for event in llm.step() if isinstance(event, Done)]
        llm.release(f"q{number}")
    assert (cached[0], cached[2]) == (0, 0)
    assert (cached[1] > 0) == caches


@pytest.mark.long
def test_schemes_run_for_real() -> None:
    for package in ("sentence_transformers", "bm25s", "tokenizers"):
        pytest.importorskip(package)
    from benchmarks.common.checkpoint import TINY
    from benchmarks.rag.benchmark import LATENCIES, SPEED_UPS, SPREADS, RagSize, measure
    from benchmarks.registry import BenchmarkOptions

    schemes = (HAND_WRITTEN, OURS)
    size = RagSize(("search",), schemes, num_queries=1, rounds=1, max_chars=800, answer_tokens=4, shape=TINY)
    report = measure(size, BenchmarkOptions())
    assert len(report.table(LATENCIES)) == len(report.table(SPEED_UPS)) == 2
    assert len(report.table(SPREADS)) == 4
    for row in report.table(LATENCIES).values():
        assert set(row.values) == {*schemes, "equal_answers"}
        assert row.values["equal_answers"] == "1 of 1"
    assert report.goals[0].met
    assert [row.name for row in report.table(LATENCIES).values()] == ["search, alone", "search, together"]
