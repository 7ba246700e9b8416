"""The benchmark of predictions beside recorded runs, at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.predictions.benchmark import ERRORS, FITTED, fit, measure, predicted_s, rank_correlation
from benchmarks.predictions.recorded import RUNS, RecordedRun, Setting, chain_summary, load_runs
from benchmarks.registry import BenchmarkOptions
from stretto.model.errors import ConfigError, DocumentError

COLUMNS = "gpus,summarizer,evaluator,n_eval,max_out,n_docs,method,pred_s,real_s"
SETTING = Setting(8, "vicuna-13b-v1.5", "Llama-2-70b-chat-hf", 100, 1, 40)


def write(folder: Path, rows: list[str]) -> None:
    path = folder / RUNS
    path.parent.mkdir()
    path.write_text("\n".join([COLUMNS, *rows]) + "\n", "utf-8")


def test_it_predicts_runs_that_it_was_not_fitted_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.predictions.benchmark._NUM_FITTED", 1)
    monkeypatch.setattr("benchmarks.predictions.benchmark._NUM_HALVINGS", 1)
    monkeypatch.setattr("benchmarks.predictions.benchmark._SKEWS", (0.5,))
    rows = [
        f"8,vicuna-13b-v1.5,Llama-2-70b-chat-hf,{evaluations},40,100,{method},100,150"
        for evaluations in (1, 2)
        for method in ("ours", "naive")
    ]
    write(tmp_path, rows)
    report = measure(BenchmarkOptions(quick=True), tmp_path)
    found = report.table(ERRORS)["all"].values
    assert found["runs"] == 1
    assert found["authors_error_percent"] == -33.3
    assert report.table(FITTED)["numbers"].values["skew"] == 0.5
    assert report.goals[0].name == "mean |error| (%), vicuna-13b-v1.5"


def test_the_fit_finds_the_numbers_that_made_the_runs() -> None:
    def predict(setting: Setting, skew: float, factor: float) -> float:
        return 100 * skew**setting.num_evaluations * factor

    settings = [Setting(8, name, "judge", 100, count, 900) for name in ("a", "b") for count in (1, 2, 3)]
    runs = [
        RecordedRun(one, True, 0.0, predict(one, 1.3, 0.9 if one.summariser == "a" else 2.0))
        for one in settings
    ]
    found = fit(runs, predict)
    assert found.skew == 1.3
    assert found.factors == pytest.approx({"a": 0.9, "b": 2.0}, rel=0.06)


def test_more_evaluations_and_longer_summaries_take_longer() -> None:
    few_s = predicted_s(SETTING, 0.5, 1.0, 1)
    many = Setting(8, "vicuna-13b-v1.5", "Llama-2-70b-chat-hf", 100, 6, 40)
    assert predicted_s(many, 0.5, 1.0, 1) > few_s > predicted_s(SETTING, 0.5, 0.2, 1)


def test_documents_have_the_published_numbers_of_chunks() -> None:
    for num, most in ((100, 60), (300, 201)):
        setting = Setting(8, "vicuna-13b-v1.5", "Llama-2-70b-chat-hf", num, 1, 900)
        chunks = sorted(len(request.chunks) for request in chain_summary(setting, 1.2)[1])
        assert chunks[-1] == most
        assert 2 <= chunks[num // 2] <= 4


def test_ranks_of_equal_values_are_shared() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 2, 2], [1, 2, 3, 4]) == pytest.approx(0.894, abs=1e-3)
    assert rank_correlation([1, 2], [5, 5]) == 0.0


def test_a_wrong_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data"):
        load_runs(tmp_path)
    write(tmp_path, ["5,vicuna-13b-v1.5,Llama-2-70b-chat-hf,1,900,100,naive,100,150"])
    with pytest.raises(DocumentError, match=r"row 2: 5 GPUs"):
        load_runs(tmp_path)
