"""Teola's evaluation at toy size: every scheme answers the same, bounds hold, ours is not the slower one."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.registry import BenchmarkOptions
from benchmarks.teola.benchmark import TeolaSize, measure
from benchmarks.teola.compare import Scenario, compare
from benchmarks.teola.costs import SLOW, LinearStep, ModelClass, engines, models, one_token, prices, prompt
from benchmarks.teola.examples import BATCH_SIZES, BREAKDOWN, CHAIN
from benchmarks.teola.limits import LIMITS
from benchmarks.teola.overhead import _noting, idle_s
from benchmarks.teola.schemes import ALL, HAND_WRITTEN, OURS, PAPERS, SCHEMES, Scheme
from benchmarks.teola.simulate import Testbed, run
from benchmarks.teola.tables import (
    BATCHING,
    BATCHING_BOTH,
    END_TO_END,
    OVERHEAD,
    PASSES,
    SHARING,
    SPEED_UPS,
    SPEEDS,
    TAILS,
    VARIANTS,
)
from benchmarks.teola.workload import DATASETS, SAMPLE, DatasetSizes, queries, sizes
from stretto.costs.shape import StepShape
from stretto.model.errors import DocumentError
from stretto.model.tasks import Task
from stretto.model.values import ABSENT, Chunk, Hit
from stretto.sched.actions import StartBatch

Testbed.__test__ = False  # type: ignore[attr-defined]
POLICY = SCHEMES[OURS].policy
SCHEME_LIST = list(SCHEMES.values())
SMALL = {name: DatasetSizes(of.questions, tuple(n // 8 for n in of.documents)) for name, of in SAMPLE.items()}


@pytest.mark.parametrize("app", DATASETS)
def test_every_scheme_answers_the_same_and_none_beats_a_bound(app: str) -> None:
    """`compare` asserts both; alone, ours is no slower than any."""
    (one,) = compare(Scenario(Testbed("7B"), (app,), 4, (0,)), SMALL, SCHEME_LIST, [0.0])
    for scheme in SCHEMES:
        assert one.speed_up(OURS, scheme) >= 1.0, scheme
    assert one.bound_s <= one.mean_s(OURS) <= 1.2 * one.bound_s
    assert one.per_s == 0.0


@pytest.mark.long
@pytest.mark.parametrize("app", ["naive", "advanced"])
def test_under_load_ours_is_faster_than_all(app: str) -> None:
    setting = Scenario(Testbed("7B"), (app,), 16, (0,))
    (one,) = compare(setting, SAMPLE, SCHEME_LIST, [0.8])
    for scheme in (*PAPERS, HAND_WRITTEN):
        assert one.speed_up(OURS, scheme) > 1.0, scheme


def test_apps_share_engines() -> None:
    """Side by side, queries come by time, of both; and the one app makes the other wait."""
    testbed = Testbed("7B")
    setting = Scenario(testbed, ("naive", "advanced"), 16, (0,))
    (one,) = compare(setting, SAMPLE, [SCHEMES[OURS]], [0.8])
    asked = setting.asked(SAMPLE, one.per_s, 0)
    assert [query.at_s for query in asked] == sorted(query.at_s for query in asked)
    together = run(testbed, SCHEMES[OURS], asked).latencies_s
    for app in ("naive", "advanced"):
        own = [query for query in asked if query.app == app]
        assert len(own) == 8
        apart = run(testbed, SCHEMES[OURS], own).latencies_s
        assert sum(together[query.name] for query in own) > 1.05 * sum(apart.values())


@pytest.mark.long
def test_both_policies_that_know_queries_beat_blind_batches_that_never_wait() -> None:
    """Documents of very different sizes wait for one embedding engine."""
    blind = Scheme("blind", ALL, "throughput", fill_timeout_s=0.0)
    knowing = [Scheme(policy, ALL, policy) for policy in ("topology_aware", POLICY)]
    (one,) = compare(Scenario(Testbed("7B"), ("advanced",), 24, (0,)), SAMPLE, [blind, *knowing], [0.8])
    assert one.speed_up("topology_aware", "blind") > 1.03
    assert one.speed_up(POLICY, "topology_aware") > 1.05
    assert one.p99_s[POLICY] < 1.25 * one.p99_s["blind"]


def test_same_seed_same_run_and_another_seed_another() -> None:
    runs = [run(Testbed("7B"), SCHEMES[OURS], queries("search", SAMPLE, 5, 2.0, seed)) for seed in (1, 1, 2)]
    assert runs[0].latencies_s == runs[1].latencies_s
    assert runs[0].every_s != runs[2].every_s


def test_both_branches_of_search_are_taken() -> None:
    ran = run(Testbed("7B"), SCHEMES[OURS], queries("search", SAMPLE, 12, 0.0, 0))
    assert {outputs["sources"] is ABSENT for outputs in ran.outputs.values()} == {True, False}


def test_documents_become_as_many_chunks_as_their_size_says() -> None:
    known = {**SAMPLE, "finqa": DatasetSizes((40,), (1020 * 5 + 8,))}
    (query,) = queries("naive", known, 1, 0.0, 0, dataset="finqa")
    files = query.inputs["files"]
    assert isinstance(files, list)
    (document,) = files
    assert len(document.sections) == 6
    assert abs(len(str(query.inputs["question"])) - 40) <= 2


def test_no_prefix_is_found_again_without_caching() -> None:
    asked = queries("naive", SMALL, 3, 0.0, 0, dataset="truthfulqa")
    scheme = SCHEMES["LlamaDistPC-PO"]
    testbed = Testbed("7B", speeds="RTX 3090")
    with_cache = run(testbed, scheme, asked)
    without = run(testbed, replace(scheme, caches=False), asked)
    assert all(with_cache.latencies_s[name] < without.latencies_s[name] for name in without.latencies_s)


def test_a_step_is_the_sum_of_its_parts() -> None:
    step = LinearStep(0.01, 0.001, 1e-6)
    shape = StepShape(prefill_tokens=5, num_decodes=2, context_tokens=100)
    assert step.step_s(shape) == pytest.approx(0.01 + 0.005 + 0.0001)
    decodes = shape._replace(prefill_tokens=0)
    assert step.steps_s(decodes, 3) == pytest.approx(sum(step.step_s(decodes.after(n)) for n in range(3)))


def test_larger_models_take_longer_over_a_token_and_a_prompt() -> None:
    for shape in (one_token(100), prompt(300)):
        steps = [model.cost.step_s(shape) for model in models().values()]
        assert steps == sorted(steps)


@pytest.mark.parametrize("model", models().values(), ids=lambda model: model.name)
def test_the_least_profile_is_no_slower_than_any_steps(model: ModelClass) -> None:
    least = model.least()
    for tokens in (1, 30, 64, 65, 200, 512):
        whole_s = least.batch_s(tokens) + least.per_output_s
        assert whole_s <= model.cost.step_s(prompt(tokens)) + 1e-12
        for cut in {1, tokens // 2} - {0, tokens}:
            cut_s = model.cost.step_s(prompt(cut)) + model.cost.step_s(prompt(tokens - cut))
            assert whole_s <= cut_s + 1e-12


@pytest.mark.parametrize("model", [*models().values(), SLOW], ids=lambda model: model.name)
def test_no_steps_read_tokens_faster_than_the_least_profile(model: ModelClass) -> None:
    token_s = model.least().per_unit_s
    assert token_s > 0
    for tokens in (1, 64, 130, 257, 511, 512):
        assert token_s * tokens <= model.cost.step_s(prompt(tokens)) + 1e-12
    assert token_s * 512 >= 0.6 * model.cost.step_s(prompt(512)), "it is not far from it either"


def test_searches_and_short_texts_cost_what_they_should() -> None:
    price = prices(engines())
    chunk, query = "x" * (4 * 256 - 1), "x" * 79

    def batch(engine: str, op: str, port: str, *items: object) -> StartBatch:
        return StartBatch(engine, 0, 1, (Task(1, "q", op, op, {port: items}, {}, len(items), (port,)),), 1)

    embedding, vectors = engines()["embedding"], engines()["vectors"]
    per_chunk_s = price["embedding"].batch_s(batch("embedding", "embed", "texts", chunk, chunk))
    assert per_chunk_s == pytest.approx(embedding.batch_s(2))
    of_query_s = price["embedding"].batch_s(batch("embedding", "embed", "texts", query)) - embedding.base_s
    assert of_query_s == pytest.approx(embedding.per_unit_s * 20 / 256)
    assert price["vectors"].batch_s(batch("vectors", "search", "queries", (1,), (2,))) == pytest.approx(
        0.0038
    )
    assert price["vectors"].batch_s(batch("vectors", "ingest", "chunks", chunk)) == vectors.batch_s(1)
    hits = [Hit(Chunk("a", 0, chunk, "", None, "", 1), 1.0)] * 3
    one = Task(1, "q", "rerank", "rerank", {"question": query, "hits": hits}, {})
    reranking_s = price["reranking"].batch_s(StartBatch("reranking", 0, 1, (one,), 3))
    assert reranking_s == pytest.approx(engines()["reranking"].batch_s(3))


def test_idle_is_what_no_interval_covers() -> None:
    assert idle_s(0.0, 10.0, []) == 10.0
    assert idle_s(0.0, 10.0, [(6.0, 7.0), (1.0, 3.0), (2.0, 4.0), (2.5, 3.0)]) == 10 - 3 - 1
    assert idle_s(2.0, 5.0, [(0.0, 3.0), (4.5, 9.0), (10.0, 11.0)]) == 1.5
    assert idle_s(2.0, 5.0, [(1.0, 9.0)]) == 0.0


def test_engines_that_note_their_times_can_go_to_processes(tmp_path: Path) -> None:
    for engine in Testbed("7B").engines(SCHEMES[OURS]):
        noting = _noting(engine, tmp_path, "process")
        replica = noting.replicas[0]
        assert replica.runs_in == "process"
        executable, config = pickle.loads(pickle.dumps((replica.executable, replica.config)))
        made = executable(config)
        made.close()
    assert len(list(tmp_path.iterdir())) == len(Testbed("7B").engines())


def test_sizes_come_from_a_folder(tmp_path: Path) -> None:
    def write(name: str, *rows: object) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    with pytest.raises(DocumentError, match="documents"):
        sizes(tmp_path)
    write("tatqa/documents.jsonl", *[{"paragraphs": ["x" * 10], "table": [["a", 1]]}] * 100)
    write("tatqa/questions.jsonl", {"question": "how?"})
    write("webquestions/test.jsonl", {"question": "who?"})
    write("truthfulqa/truthfulqa.jsonl", {"question": "why not?"})
    import gzip

    for name, row in (
        ("hotpotqa/dev_questions", {"question": "which?"}),
        ("corpus_peps/peps_200", {"text": "y" * 7}),
    ):
        path = tmp_path / f"{name}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(row).encode()))
    known = sizes(tmp_path)
    assert known["truthfulqa"] == DatasetSizes([8], [7])
    assert known["finqa"].documents == [96 * 15]
    assert known["hotpotqa"].questions == [6]


@pytest.mark.long
def test_the_report_has_every_table_and_goal() -> None:
    size = TeolaSize(
        models=("7B",),
        num_queries=2,
        seeds=1,
        shares=(("low", 0.0), ("high", 0.8)),
        ablation_model="7B",
        batching_shares=(("alone", 0.0), ("0.8", 0.8)),
        batching_queries=2,
        places=("thread",),
    )
    report = measure(size, BenchmarkOptions())
    assert {row.table for row in report.rows} == {
        *(BREAKDOWN, CHAIN, BATCH_SIZES, LIMITS),
        *(END_TO_END, SPEED_UPS, TAILS, PASSES, BATCHING, BATCHING_BOTH, OVERHEAD, SHARING, VARIANTS, SPEEDS),
    }
    assert len(report.goals) == 15
    assert all(row.origin in ("simulated", "computed", "quoted") for row in report.rows)
    shares = [row.values["orchestration_share"] for row in report.rows if row.table == OVERHEAD]
    assert all(0 < share < 1 for share in shares if isinstance(share, float))
    json.dumps(report.as_dict())
