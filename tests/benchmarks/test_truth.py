"""`bench truth`: the fit, the errors, and all of it with an emulated server in place of the real one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.fleet_corpus import small_corpus

from benchmarks.emulate.load import Answered, SentRequest, ask_all
from benchmarks.emulate.servers import SteadyCost, serving
from benchmarks.registry import BenchmarkOptions
from benchmarks.truth import probe
from benchmarks.truth.benchmark import ARRIVAL, ERRORS, STEPS, compare, one_server, run_benchmark
from benchmarks.truth.linear_cost import LinearCost, fit_linear
from benchmarks.truth.probe import JoinedPrompt, ProbeSize
from benchmarks.truth.real_runs import TruthSize, measure_real
from benchmarks.truth.times import error, times_of
from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape
from stretto.model.errors import ConfigError, EngineFailure

COST = LinearCost(0.004, 0.001, 2e-5, 1e-9, 3e-4, 5e-7)
SIZE = TruthSize(
    num_requests=4,
    shares=(0.5,),
    num_real=1,
    tokens=(3, 5),
    probe=ProbeSize(
        decodes=(1, 2),
        contexts=(16,),
        decode_repeats=1,
        new_tokens=4,
        beside=(2,),
        prompts=(16, 64),
        prompt_repeats=1,
        beside_tokens=120,
    ),
)


def shapes() -> list[StepShape]:
    prompts = [StepShape(1, n, n, n * (n + 1) // 2) for n in (16, 64, 256, 1024)]
    return prompts + [
        StepShape(num_decodes=n, context_tokens=n * c, max_context_tokens=c)
        for n in (1, 4, 16)
        for c in (100, 400)
    ]


def test_the_fit_finds_the_terms() -> None:
    seen_at_once = MeasuredStep(StepShape(num_decodes=2, context_tokens=60, max_context_tokens=30), 0.0)
    found = fit_linear([seen_at_once, *(MeasuredStep(shape, COST.step_s(shape)) for shape in shapes())])
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


JOINED = JoinedPrompt(MeasuredStep(StepShape(1, 16, 16, 136, 2), 0.03), 0.02, 0.02)


def test_a_server_beside_whose_answers_no_prompt_was_answered_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "ask_all", lambda _: [])
    monkeypatch.setattr(probe, "ask_beside", lambda *_: ([], []))
    with pytest.raises(EngineFailure, match="no prompt was answered beside answers of 130 tokens"):
        probe.probe("http://x", ProbeSize(decodes=(), prompts=()))


def test_prompts_differ_from_their_first_token_on(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str | tuple[int, ...]] = []

    def answer(asked: Sequence[SentRequest]) -> list[Answered]:
        prompts.extend(one.prompt for one in asked)
        return [Answered(0.0, 1.0, 2.0, one.max_tokens) for one in asked]

    def answer_both(
        streams: Sequence[SentRequest], others: Sequence[SentRequest]
    ) -> tuple[list[Answered], list[Answered]]:
        return answer(streams), answer(others)

    monkeypatch.setattr(probe, "ask_all", answer)
    monkeypatch.setattr(probe, "ask_beside", answer_both)
    monkeypatch.setattr(probe, "join", lambda *_: JOINED)
    size = ProbeSize()
    assert len(probe.probe("", size).decodes) == len(size.decodes) * len(size.contexts)
    assert len({prompt[0] for prompt in prompts}) == len(prompts) > 150


def streams_of(*ends_s: float) -> list[Answered]:
    """Two answers that were sent at second 5, with tokens at these seconds after it."""
    return [Answered(5.0, ends_s[0], ends_s[-1], len(ends_s), ends_s)] * 2


def test_a_prompt_joins_the_step_whose_tokens_come_with_its_own() -> None:
    answers = streams_of(0.10, 0.12, 0.14, 0.16, 0.21, 0.23, 0.25)
    joined = probe.join(50, Answered(5.15, 0.061, 0.061, 1), answers)
    assert joined is not None
    assert joined.step.shape == StepShape(1, 50, 50, 1275, 2, 2 * 68, 68)
    assert joined.step.seconds == pytest.approx(0.05)
    assert joined.waited_s == pytest.approx(0.01)
    assert joined.before_s == pytest.approx(0.02)


@pytest.mark.parametrize("first_s", [0.101, 0.25, 0.4])
def test_a_prompt_beside_answers_that_begin_or_end_is_left_out(first_s: float) -> None:
    answers = streams_of(0.10, 0.12, 0.14, 0.16, 0.21, 0.23, 0.25)
    assert probe.join(50, Answered(5.0, first_s, first_s, 1), answers) is None


def test_what_prompts_wait_besides_half_a_step_is_their_way_to_the_engine() -> None:
    """Steps of 20 ms, a way of 7 ms: prompts that are sent in the last 7 ms of a step miss the next one."""
    ends_s = [5.0 + 0.02 * number for number in range(100)]
    answers = [Answered(5.0, 0.0, ends_s[-1] - 5.0, 100, tuple(one - 5.0 for one in ends_s))]
    joined = []
    for place in range(200):
        sent_s = 5.2 + 0.0073 * place
        begin_s = next(one for one in ends_s if one >= sent_s + 0.007)
        first_s = begin_s + 0.02 - sent_s
        joined.append(probe.join(16, Answered(sent_s, first_s, first_s, 1), answers))
    found = probe.Probed((), [one for one in joined if one])
    assert len(found.joined) == 200
    assert found.arrival_s == pytest.approx(0.007, abs=0.0005)
    (step,) = found.prompts
    assert step.seconds == pytest.approx(0.02)


def test_a_request_comes_to_the_instance_when_its_way_is_over() -> None:
    """Two tokens of 0.1 s each, behind a way of 0.3 s."""
    pytest.importorskip("uvloop")
    with serving(one_server(SteadyCost(0.1), 0.3)) as servers:
        (answered,) = ask_all([SentRequest(0.0, servers.urls[0], (400, 500), 2, is_streamed=True)])
    assert answered.first_s > 0.399
    assert answered.whole_s > 0.499
    assert answered.num_chunks == len(answered.chunk_s) == 2


def test_measurements_together_give_the_mean_of_each_shape() -> None:
    shape, other = StepShape(num_decodes=1), StepShape(num_decodes=2)
    first = probe.Probed([MeasuredStep(shape, 0.01), MeasuredStep(other, 0.02)], [JOINED])
    second = probe.Probed([MeasuredStep(shape, 0.03)], [JOINED, JOINED])
    together = probe.pooled([first, second])
    assert [(one.shape, one.seconds) for one in together.decodes] == [(shape, 0.02), (other, 0.02)]
    assert len(together.joined) == 3


def test_it_wants_vllm_and_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run_benchmark(BenchmarkOptions(vllm=tmp_path / "python"))


@pytest.mark.long
def test_all_tables_are_made() -> None:
    pytest.importorskip("uvloop")
    with serving(one_server(COST)) as real:
        runs = measure_real(SIZE, real.urls[0], small_corpus(), BenchmarkOptions())
    report = compare(SIZE, runs, BenchmarkOptions())
    assert len(report.table(f"{STEPS}, 50 %")) == 4
    assert len(report.table(ARRIVAL)) == 1
    assert list(report.table(ERRORS)) == [
        f"50 %, {what}, {statistic}"
        for what in ("first token", "time per token", "end to end")
        for statistic in ("mean", "p99")
    ]
    assert len(report.goals) == 6
