"""Profiles: what is measured of an engine, and the line through it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.costs.fit_profile import fit_profile, fit_profile_by_length
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile

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


# --- by length


def test_lengths_change_the_time_of_a_unit_and_usual_units_stay() -> None:
    profile = Profile(0.5, 0.25, per_token_s=0.001, unit_tokens=200.0)
    assert profile.batch_s(4) == 1.5
    assert profile.batch_s(4, 800) == pytest.approx(1.5)
    assert profile.batch_s(4, 400) == pytest.approx(1.1)
    assert profile.batch_s(4, 1200) == pytest.approx(1.9)
    assert Profile(0.5, 0.25).batch_s(4, 1200) == 1.5, "a profile without lengths takes no notice of them"


GRID = [(units, length) for length in (200, 80, 15) for units in SIZES]


@pytest.mark.parametrize(
    ("base_s", "unit_s", "token_s"), [(0.004, 0.002, 1e-4), (0.0, 0.0, 1e-5), (0.1, 0.01, 0)]
)
def test_a_fit_by_length_recovers_the_numbers(base_s: float, unit_s: float, token_s: float) -> None:
    units, tokens = [n for n, _ in GRID], [n * length for n, length in GRID]
    seconds = [base_s + unit_s * n + token_s * k for n, k in zip(units, tokens, strict=True)]
    fitted = fit_profile_by_length(units, tokens, seconds)
    assert fitted.depends_on_length == (token_s > 0)
    assert fitted.unit_tokens == 200
    for mixed in ((7, 900), (1, 5), (32, 3200)):
        wanted_s = base_s + unit_s * mixed[0] + token_s * mixed[1]
        assert fitted.batch_s(*mixed) == pytest.approx(wanted_s, rel=1e-6)
    assert fitted.batch_s(8) == pytest.approx(base_s + (unit_s + 200 * token_s) * 8, rel=1e-6)


def test_the_efficient_batch_is_that_of_the_longest_units() -> None:
    units, tokens = [n for n, _ in GRID], [n * length for n, length in GRID]
    seconds = [(0.01 if length == 200 else 1.0) + 1e-4 * n * length for n, length in GRID]
    longest = [s for s, (_, length) in zip(seconds, GRID, strict=True) if length == 200]
    fitted = fit_profile_by_length(units, tokens, seconds)
    assert fitted.max_efficient_batch == fit_profile(SIZES, longest).max_efficient_batch


@pytest.mark.parametrize(
    ("units", "tokens", "seconds"),
    [
        ([1, 2], [10], [1.0, 2.0]),
        ([1, 2], [10, 0], [1.0, 2.0]),
        ([1, 2], [10, 20], [1.0, 2.0]),
        ([1, 1, 2], [10, 100, 20], [1.0, 2.0, 1.0]),
        ([1, 2, 2], [100, 200, 20], [1.0, 2.0, 0.0]),
    ],
)
def test_what_is_no_grid_is_refused(units: list[int], tokens: list[int], seconds: list[float]) -> None:
    with pytest.raises(ConfigError):
        fit_profile_by_length(units, tokens, seconds)


def test_tokens_cannot_take_longer_than_their_unit() -> None:
    with pytest.raises(ConfigError, match="tokens must not take longer"):
        Profile(0.0, 0.1, per_token_s=0.01, unit_tokens=20.0)
