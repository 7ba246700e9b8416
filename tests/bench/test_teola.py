"""Teola's evaluation at toy size: every scheme answers the same, bounds hold, ours is not the slower one."""

import json
from dataclasses import replace

import pytest

from stretto.bench.registry import Options
from stretto.bench.teola.benchmark import Size, measure
from stretto.bench.teola.compare import Setting, compare
from stretto.bench.teola.costs import LinearStep, models, one_token, prompt
from stretto.bench.teola.schemes import HAND_WRITTEN, OURS, PAPERS, SCHEMES
from stretto.bench.teola.simulate import Testbed, run
from stretto.bench.teola.tables import (
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
from stretto.bench.teola.workload import DATASETS, SAMPLE, Sizes, queries, sizes
from stretto.core import ABSENT
from stretto.costs.shape import StepShape
from stretto.errors import DocumentError

Testbed.__test__ = False  # type: ignore[attr-defined]
SCHEME_LIST = list(SCHEMES.values())
SMALL = {name: Sizes(of.questions, tuple(n // 8 for n in of.documents)) for name, of in SAMPLE.items()}


@pytest.mark.parametrize("app", DATASETS)
def test_every_scheme_answers_the_same_and_none_beats_a_bound(app: str) -> None:
    """`compare` asserts both; alone, ours is no slower than any."""
    (one,) = compare(Setting(Testbed("7B"), (app,), 4, (0,)), SMALL, SCHEME_LIST, [0.0])
    for scheme in SCHEMES:
        assert one.speed_up(OURS, scheme) >= 1.0, scheme
    assert one.bound_s <= one.mean_s(OURS) <= 1.2 * one.bound_s
    assert one.per_s == 0.0


@pytest.mark.parametrize("app", ["naive", "advanced"])
def test_under_load_ours_is_faster_than_all(app: str) -> None:
    setting = Setting(Testbed("7B"), (app,), 16, (0,))
    (one,) = compare(setting, SAMPLE, SCHEME_LIST, [0.8])
    for scheme in (*PAPERS, HAND_WRITTEN):
        assert one.speed_up(OURS, scheme) > 1.0, scheme


def test_apps_share_engines() -> None:
    setting = Setting(Testbed("7B"), ("naive", "advanced"), 6, (0,))
    (one,) = compare(setting, SMALL, SCHEME_LIST[-2:], [0.5])
    asked = setting.asked(SMALL, one.per_s, 0)
    assert [query.at_s for query in asked] == sorted(query.at_s for query in asked)
    assert {query.app for query in asked} == {"naive", "advanced"}


def test_same_seed_same_run_and_another_seed_another() -> None:
    runs = [run(Testbed("7B"), SCHEMES[OURS], queries("search", SAMPLE, 5, 2.0, seed)) for seed in (1, 1, 2)]
    assert runs[0].latencies_s == runs[1].latencies_s
    assert runs[0].every_s != runs[2].every_s


def test_both_branches_of_search_are_taken() -> None:
    ran = run(Testbed("7B"), SCHEMES[OURS], queries("search", SAMPLE, 12, 0.0, 0))
    assert {outputs["sources"] is ABSENT for outputs in ran.outputs.values()} == {True, False}


def test_documents_become_as_many_chunks_as_their_size_says() -> None:
    known = {**SAMPLE, "finqa": Sizes((40,), (1020 * 5 + 8,))}
    (query,) = queries("naive", known, 1, 0.0, 0, dataset="finqa")
    (document,) = query.inputs["files"]  # type: ignore[misc]
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
def test_the_least_profile_is_no_slower_than_any_steps(model) -> None:
    least = model.least()
    for tokens in (1, 30, 64, 65, 200, 512):
        whole_s = least.batch_s(tokens) + least.per_output_s
        assert whole_s <= model.cost.step_s(prompt(tokens)) + 1e-12
        for cut in {1, tokens // 2} - {0, tokens}:
            cut_s = model.cost.step_s(prompt(cut)) + model.cost.step_s(prompt(tokens - cut))
            assert whole_s <= cut_s + 1e-12


def test_sizes_come_from_a_folder(tmp_path) -> None:
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
    assert known["truthfulqa"] == Sizes([8], [7])
    assert known["finqa"].documents == [96 * 15]
    assert known["hotpotqa"].questions == [6]


def test_the_report_has_every_table_and_goal() -> None:
    size = Size(
        models=("7B",), num_queries=2, seeds=1, shares=(("low", 0.0), ("high", 0.8)), ablation_model="7B"
    )
    report = measure(size, Options())
    assert {row.table for row in report.rows} == {
        *(END_TO_END, SPEED_UPS, TAILS, PASSES, BATCHING, BATCHING_BOTH, OVERHEAD, SHARING, VARIANTS, SPEEDS),
    }
    assert len(report.goals) == 14
    assert all(row.origin in ("simulated", "computed", "quoted") for row in report.rows)
    shares = [row.values["orchestration_share"] for row in report.rows if row.table == OVERHEAD]
    assert all(0 < share < 1 for share in shares if isinstance(share, float))
    json.dumps(report.as_dict())
