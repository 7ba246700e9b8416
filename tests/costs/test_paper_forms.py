from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_costs import SMALL

from benchmarks.costs.per_batch_lines import fit_per_batch_lines
from stretto.costs.fit import MeasuredStep
from stretto.costs.preble import PREBLE, PrebleCost, preble_cost
from stretto.costs.shape import StepShape
from stretto.model.errors import ConfigError


def decode(num: int, context: int, longest: int) -> StepShape:
    return StepShape(num_decodes=num, context_tokens=context, max_context_tokens=longest)


def step(shape: StepShape, forward: float, preparation: float = 1.0, sampling: float = 1.0) -> MeasuredStep:
    parts = {"forward": forward, "preparation": preparation, "sampling": sampling, "host": 0.0}
    return MeasuredStep(shape, sum(parts.values()), parts)


def test_lines_go_through_the_extreme_points_of_each_batch_size() -> None:
    low, middle, high = decode(4, 40, 10), decode(4, 400, 100), decode(4, 4000, 1000)
    steps = [step(low, 1.0), step(high, 3.0), step(high, 2.5), step(middle, 9.0)]
    lines = fit_per_batch_lines(SMALL, 1, steps)
    assert lines.parts(low)["forward"] == pytest.approx(1.0)
    assert lines.parts(high)["forward"] == pytest.approx(2.5)
    between = decode(4, 2020, 505)
    assert lines.parts(between)["forward"] == pytest.approx(1.75)
    assert lines.step_s(between) == pytest.approx(1.75 + 1 + 1)
    assert lines.steps_s(low, 3) == pytest.approx(sum(lines.step_s(low.after(i)) for i in range(3)))


def test_a_batch_size_that_was_not_measured_takes_the_nearest() -> None:
    lines = fit_per_batch_lines(SMALL, 1, [step(decode(4, 40, 10), 1.0), step(decode(8, 80, 10), 2.0)])
    assert lines.parts(decode(5, 50, 10))["forward"] == 1.0
    assert lines.parts(decode(99, 990, 10))["forward"] == 2.0


def test_lines_know_only_what_they_were_fitted_to() -> None:
    lines = fit_per_batch_lines(SMALL, 1, [step(decode(4, 40, 10), 1.0)])
    with pytest.raises(ConfigError, match="fitted to no prefill steps"):
        lines.step_s(StepShape(1, 10, 10, 55))
    with pytest.raises(ConfigError, match="got both"):
        lines.step_s(StepShape(1, 10, 10, 55, 1, 10, 10))
    with pytest.raises(ConfigError, match="the parts of every step"):
        fit_per_batch_lines(SMALL, 1, [MeasuredStep(decode(4, 40, 10), 1.0)])


def test_prebles_equations() -> None:
    a6000 = preble_cost("mistral_7b_a6000")
    assert a6000.step_s(decode(100, 1000, 10)) == pytest.approx((22 + 0.32) / 0.9 / 1000)
    long = (0.10842571 * 500 + 4.209777054806409 + 1.86e-4 * 5000 + 0.159) / 0.9 / 1000
    assert a6000.step_s(decode(500, 5000, 10)) == pytest.approx(long)
    new, length = 2048, 4096
    prefill = StepShape(1, new, new, new * 2048 + new * (new + 1) // 2)
    extra = 1.13e-3 * new + 1.75e-3 * length + 2.19e-6 * new * length
    linear = 0.10842571 * new + 4.209777054806409
    assert a6000.step_s(prefill) == pytest.approx((linear + 1.86e-4 * length + 0.159 + extra) / 0.9 / 1000)
    assert preble_cost("llama2_7b_a6000").step_s(decode(1, 2048, 2048)) == pytest.approx(0.0277, abs=1e-4)


def test_where_prebles_parabola_was_negative_time_is_between_its_ends() -> None:
    a6000 = preble_cost("mistral_7b_a6000")
    times = [a6000.step_s(decode(n, n, 1)) for n in (192, 300, 350, 365, 383, 384)]
    assert times == sorted(times)
    assert times[0] == pytest.approx((22 + 0.32) / 900)


@settings(deadline=None)
@given(st.sampled_from(sorted(PREBLE)), st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 200))
def test_prebles_times_grow_with_tokens(name: str, new: int, before: int, more: int) -> None:
    cost = PREBLE[name]

    def prefill(new: int, before: int) -> float:
        return cost.step_s(StepShape(1, new, new, new * before + new * (new + 1) // 2))

    assert 0 < prefill(new, before) <= min(prefill(new + more, before), prefill(new, before + more)) + 1e-12
    first = decode(new, new * (before + 1), before + 1)
    assert 0 < cost.step_s(first) <= cost.step_s(decode(new + more, (new + more) * (before + 1), before + 1))
    assert cost.steps_s(first, 3) == pytest.approx(sum(cost.step_s(first.after(i)) for i in range(3)))


def test_an_empty_step_takes_no_time_and_unknown_regressions_are_named() -> None:
    assert all(isinstance(cost, PrebleCost) and cost.step_s(StepShape()) == 0 for cost in PREBLE.values())
    with pytest.raises(ConfigError, match="'h100'; there are mistral_7b_a6000"):
        preble_cost("h100")
