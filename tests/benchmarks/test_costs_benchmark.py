from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from support.recorded_steps import write_profiles, write_run
from support.step_costs import TRUE, numbers

from benchmarks.costs.benchmark import FITTED, MEAN, measure, run_benchmark
from benchmarks.costs.recorded_replay import replay
from benchmarks.costs.recorded_runs import STEPS, RealRun, load_real_runs
from benchmarks.costs.runs import FEATURES, RUNS
from benchmarks.costs.step_profiles import load_profiles
from benchmarks.registry import BenchmarkOptions
from stretto.costs.shape import StepShape
from stretto.costs.step import LLMStepCost
from stretto.model.errors import ConfigError, DocumentError

REQUESTS = [[100, 30], [60, 20], [900, 10], [200, 30]]


def run_steps() -> list[tuple[StepShape, float]]:
    """Return the steps that the scheduler makes of the requests: all prompts fit the first steps,
    little padding.
    """
    cost = LLMStepCost(FEATURES, numbers(**TRUE))
    shapes = [StepShape(2, 160, 100, 8080), StepShape(1, 900, 900, 405450), StepShape(1, 200, 200, 20100)]
    running = [[prompt, output - 1] for prompt, output in REQUESTS]
    while running:
        running = [[length + 1, left - 1] for length, left in running]
        lengths = [length for length, _ in running]
        shapes.append(
            StepShape(num_decodes=len(lengths), context_tokens=sum(lengths), max_context_tokens=max(lengths))
        )
        running = [[length, left] for length, left in running if left]
    return [(shape, cost.step_s(shape)) for shape in shapes]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_profiles(tmp_path)
    write_run(tmp_path, run_steps(), REQUESTS)
    return tmp_path


def test_all_forms_are_compared_on_what_they_have_not_seen(data: Path) -> None:
    report = measure(BenchmarkOptions(), data)
    means = report.table(MEAN)
    physical, lines = means["physical"].values, means["per_batch_lines"].values
    assert isinstance(physical["fitted to %"], float)
    assert physical["fitted to %"] <= 2
    assert isinstance(physical["decode"], float)
    assert 0 < physical["decode"] < 5
    assert isinstance(lines["unlike contexts"], float)
    assert lines["unlike contexts"] > physical["decode"]
    assert means["physical, model never seen"].values["fitted to %"] == 0
    assert "prefill" not in means["roofline"].values
    assert "physical: one|tp1" in report.table(FITTED)
    assert len(report.table(RUNS)) == 2
    assert len(report.goals) == 8


def test_a_recorded_run_is_found_again(data: Path) -> None:
    first, second = load_real_runs(data / "samullm")
    assert (first.in_order, first.default_policy, second.default_policy) == (True, True, False)
    found, cost = replay(first), LLMStepCost(FEATURES, numbers(**TRUE))
    assert found.prefill_s(cost) + found.decode_s(cost) == pytest.approx(first.seconds, rel=0.01)
    assert (len(found.prefills), found.num_decode_steps) == (3, 29)
    assert found.prefill_tokens == sum(prompt for prompt, _ in REQUESTS)
    decoded = sum(repeats * shape.num_decodes for shape, repeats in found.decodes)
    assert decoded == sum(output - 1 for _, output in REQUESTS)
    assert (found.num_preemptions, found.moved_blocks) == (0, 0)


def crowded(*, swaps: bool, num_requests: int = 30) -> RealRun:
    """Return a run with 100 blocks and prompts of 5 blocks, which grow to 8."""
    requests = ((80, 40),) * num_requests
    return RealRun("crowded", requests, 100, 2048, (), in_order=True, swaps=swaps, default_policy=True)


def test_prompts_are_admitted_as_long_as_one_percent_of_the_blocks_stays_free() -> None:
    found = replay(crowded(swaps=True))
    assert found.prefills[0].num_prefills == 19  # of 95 blocks; with another one none would be free
    shape, _ = found.decodes[0]
    assert shape.num_decodes == 16  # a block more of each; three gave way
    assert shape.context_tokens == round(16 * (81 + 7.5))


def test_preempted_sequences_come_back_by_copies_or_by_recomputing() -> None:
    copied, recomputed = replay(crowded(swaps=True)), replay(crowded(swaps=False))
    assert copied.num_preemptions == recomputed.num_preemptions > 0
    assert copied.prefill_tokens == 30 * 80 < recomputed.prefill_tokens
    assert copied.moved_blocks >= 2 * 5 * copied.num_preemptions
    assert recomputed.moved_blocks == 0


def test_only_the_first_run_of_a_log_counts(tmp_path: Path) -> None:
    steps = run_steps()
    write_run(tmp_path, [*steps, *steps, *steps], REQUESTS)
    assert len(load_real_runs(tmp_path / "samullm")[0].steps) == len(steps)


def test_what_is_wrong_with_profiles_is_named(tmp_path: Path) -> None:
    write_profiles(tmp_path, bad_cells={"t_comp_us": "-3"})
    with pytest.raises(
        DocumentError, match=r"iters\.csv\.gz, row 1721: forward must be finite and not negative, got -3e-06"
    ):
        load_profiles(tmp_path)
    write_profiles(tmp_path, bad_cells={"model": "three"})
    with pytest.raises(DocumentError, match=r"row 1721: model 'three' is not described"):
        load_profiles(tmp_path)


def test_what_is_wrong_with_runs_is_named(data: Path) -> None:
    path = data / "samullm" / STEPS
    with gzip.open(path, "wt") as file:
        file.write("log,iter\n")
    with pytest.raises(DocumentError, match=r"there is no column num_seqs"):
        load_real_runs(data / "samullm")
    header = "log,num_seqs,token_num,padded_token_num,total_tokens,max_len,phase,t_us\n"
    with gzip.open(path, "wt") as file:
        file.write(header + "first.log,1,1,1,9,9,decode,0\n")
    with pytest.raises(DocumentError, match=r"row 2: seconds is 0"):
        load_real_runs(data / "samullm")
    with gzip.open(path, "wt") as file:
        file.write(header + "other.log,1,1,1,9,9,decode,5\n")
    with pytest.raises(DocumentError, match=r"'first.log' is missing"):
        load_real_runs(data / "samullm")


def test_the_benchmark_needs_its_data(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(ConfigError, match="needs --data DIR"):
            run_benchmark(BenchmarkOptions(data=folder))
