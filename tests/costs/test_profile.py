"""Profiles: what is measured of an engine, and the line through it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.costs.profile import Profile, fit_profile
from stretto.errors import ConfigError

SIZES = (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    "fields",
    [
        {"base_s": -1e-9},
        {"per_unit_s": -1.0},
        {"per_output_s": -1.0},
        {"base_s": math.nan},
        {"per_unit_s": math.inf},
        {"max_efficient_batch": 0},
    ],
)
def test_a_profile_has_finite_times_and_batches(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Profile(**fields)  # type: ignore[arg-type]


def test_a_batch_costs_its_base_and_its_units() -> None:
    assert Profile(0.5, 0.25).batch_s(4) == 1.5
    assert Profile().batch_s(1000) == 0.0


@pytest.mark.parametrize(("base_s", "per_unit_s"), [(0.004, 0.03), (0.0, 1e-6), (0.2, 0.0), (1e-5, 3.0)])
def test_a_fit_recovers_the_line_it_was_measured_on(base_s: float, per_unit_s: float) -> None:
    fitted = fit_profile(SIZES, [base_s + per_unit_s * units for units in SIZES])
    assert fitted.base_s == pytest.approx(base_s, rel=1e-6, abs=1e-9)
    assert fitted.per_unit_s == pytest.approx(per_unit_s, rel=1e-6, abs=1e-9)


def test_small_calls_count_as_much_as_large_ones() -> None:
    """Errors are relative: a large call that is 10 % off does not spoil the base of a small one."""
    seconds = [0.010 + 0.001 * units for units in SIZES]
    seconds[-1] *= 1.1
    assert fit_profile(SIZES, seconds).base_s == pytest.approx(0.010, rel=0.1)


def test_the_efficient_batch_is_the_smallest_within_a_tenth_of_the_best_throughput() -> None:
    seconds = [0.1, 0.1, 0.1, 0.1, 0.16, 0.36]
    assert fit_profile(SIZES, seconds).max_efficient_batch == 16
    assert fit_profile(SIZES, seconds, tolerance=0.25).max_efficient_batch == 8
    assert fit_profile(SIZES, [1.0 * units for units in SIZES]).max_efficient_batch == 1


times = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=6)


@settings(deadline=None)
@given(times)
def test_a_fit_is_never_negative_and_never_far_from_everything(seconds: list[float]) -> None:
    fitted = fit_profile(SIZES[: len(seconds)], seconds)
    assert fitted.base_s >= 0
    assert fitted.per_unit_s >= 0
    predicted = [fitted.batch_s(units) for units in SIZES[: len(seconds)]]
    assert sum((p / t - 1) ** 2 for p, t in zip(predicted, seconds, strict=True)) <= len(seconds) + 1e-6


@pytest.mark.parametrize(
    ("units", "seconds"),
    [
        ([], []),
        ([1], [1.0]),
        ([1, 2], [1.0]),
        ([2, 2], [1.0, 1.0]),
        ([1, 2], [1.0, 0.0]),
        ([1, 2], [1.0, -1.0]),
        ([1, 2], [1.0, math.nan]),
        ([1, 2], [math.nan, 1.0]),
        ([1, 2], [1.0, math.inf]),
        ([0, 2], [1.0, 1.0]),
    ],
)
def test_what_is_no_measurement_is_refused(units: list[int], seconds: list[float]) -> None:
    with pytest.raises(ConfigError, match="positive times for at least two batch sizes"):
        fit_profile(units, seconds)
