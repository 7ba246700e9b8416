"""`bench truth`: the fit, the errors, and all of it with an emulated server in place of the real one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.fleet_corpus import small_corpus

from benchmarks.emulate.load import Answered, SentRequest
from benchmarks.emulate.servers import serving
from benchmarks.registry import BenchmarkOptions
from benchmarks.truth import probe
from benchmarks.truth.benchmark import ERRORS, STEPS, compare, one_server, run_benchmark
from benchmarks.truth.linear_cost import LinearCost, fit_linear
from benchmarks.truth.probe import ProbeSize
from benchmarks.truth.real_runs import TruthSize, measure_real
from benchmarks.truth.times import error, times_of
from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape
from stretto.errors import ConfigError

COST = LinearCost(0.004, 0.001, 2e-5, 1e-9, 3e-4, 5e-7)
SIZE = TruthSize(
    num_requests=4,
    shares=(0.5,),
    num_real=1,
    tokens=(3, 5),
    probe=ProbeSize((16, 64), (1, 2), (16,), 1, 1, 4),
)


def shapes() -> list[StepShape]:
    prompts = [StepShape(1, n, n, n * (n + 1) // 2) for n in (16, 64, 256, 1024)]
    return prompts + [
        StepShape(num_decodes=n, context_tokens=n * c, max_context_tokens=c)
        for n in (1, 4, 16)
        for c in (100, 400)
    ]


def test_the_fit_finds_the_terms_despite_an_outlier() -> None:
    steps = [MeasuredStep(shape, COST.step_s(shape)) for shape in shapes() * 3]
    steps[5] = MeasuredStep(steps[5].shape, 3 * steps[5].seconds)
    found = fit_linear(steps)
    for shape in shapes():
        assert found.step_s(shape) == pytest.approx(COST.step_s(shape), rel=0.01)


def test_steps_in_a_row_cost_what_they_cost_one_by_one() -> None:
    shape = StepShape(num_decodes=3, context_tokens=90, max_context_tokens=40)
    one_by_one_s = sum(COST.step_s(shape.after(number)) for number in range(7))
    assert COST.steps_s(shape, 7) == pytest.approx(one_by_one_s)


def test_an_error_is_told_beside_the_spread_of_the_real_runs() -> None:
    def run(first_s: float) -> list[Answered]:
        return [Answered(0.0, first_s, first_s + 0.9, 10)]

    real = [times_of(run(first_s), [10]) for first_s in (1.0, 3.0)]
    found = error(real, times_of(run(1.5), [10]), "first token", "mean")
    assert (found.real_s, found.emulated_s) == (2.0, 1.5)
    assert (found.share, found.spread) == (-0.25, 1.0)
    assert error(real, real[0], "time per token", "p99").emulated_s == pytest.approx(0.1)


def test_prompts_differ_from_their_first_token_on(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str | tuple[int, ...]] = []

    def answer(asked: Sequence[SentRequest]) -> list[Answered]:
        prompts.extend(one.prompt for one in asked)
        return [Answered(0.0, 1.0, 2.0, one.max_tokens) for one in asked]

    monkeypatch.setattr(probe, "ask_all", answer)
    monkeypatch.setattr(probe, "ask_in_turn", answer)
    size = ProbeSize()
    assert len(probe.prompt_steps("", size)) == len(size.prompts)
    assert len(list(probe.decode_steps("", size))) == len(size.decodes) * len(size.contexts)
    assert len({prompt[0] for prompt in prompts}) == len(prompts)


def test_it_wants_vllm_and_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run_benchmark(BenchmarkOptions(vllm=tmp_path / "python"))


@pytest.mark.long
def test_all_tables_are_made() -> None:
    pytest.importorskip("uvloop")
    with serving(one_server(COST)) as real:
        runs = measure_real(SIZE, real.urls[0], small_corpus(), BenchmarkOptions())
    report = compare(SIZE, runs, BenchmarkOptions())
    assert len(report.table(STEPS)) == 4
    assert list(report.table(ERRORS)) == [
        f"50 %, {what}, {statistic}"
        for what in ("first token", "time per token", "end to end")
        for statistic in ("mean", "p99")
    ]
    assert len(report.goals) == 6
