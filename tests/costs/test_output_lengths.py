from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.costs.output_lengths import MAX_POINTS, LengthsBySource, OutputLengths, output_lengths
from stretto.costs.presets import load_output_lengths
from stretto.model.errors import ConfigError

counted = st.dictionaries(st.integers(0, 5000), st.floats(0.1, 100), min_size=1, max_size=30)


@settings(deadline=None)
@given(counted, st.integers(0, 99))
def test_draws_are_counted_lengths_that_follow_from_the_seed(counts: dict[int, float], seed: int) -> None:
    found = output_lengths(counts)
    length = found.draw(Random(seed))
    assert length == found.draw(Random(seed))
    assert length in counts


def test_draws_follow_the_counts() -> None:
    found = OutputLengths((10, 20, 30, 40), (8.0, 1.0, 2.0, 1.0))
    draw = Random(0)
    drawn = [found.draw(draw) for _ in range(9000)]
    assert drawn.count(10) / len(drawn) == pytest.approx(2 / 3, abs=0.02)
    assert found.mean == pytest.approx(200 / 12)
    assert found.draw(draw, limit=7) == 7


def test_many_lengths_take_bounded_memory_and_keep_their_mean() -> None:
    draw = Random(1)
    lengths = [round(draw.lognormvariate(5, 1)) for _ in range(20_000)]
    found = output_lengths({0: 1.0})
    for start in range(0, len(lengths), 500):
        found = found.with_observed(lengths[start : start + 500])
        assert len(found.lengths) <= MAX_POINTS
    assert found.mean == pytest.approx(sum(lengths) / len(lengths), rel=0.02)


def test_a_template_that_is_not_known_has_the_lengths_of_its_model() -> None:
    sources = LengthsBySource({("m", ""): output_lengths({5: 1.0})})
    assert sources.of("m", "summary").mean == 5
    sources.observe("m", "summary", 9)
    sources.observe("m", "summary", 11)
    assert sources.of("m", "summary").mean == 10
    assert sources.of("m").mean == 5
    with pytest.raises(ConfigError, match="of model 'other'"):
        sources.of("other")


def test_sources_are_bounded() -> None:
    sources = LengthsBySource({}, max_sources=2)
    for template in ("a", "b", "a", "c"):
        sources.observe("m", template, 1)
    assert sources.of("m", "a").mean == sources.of("m", "c").mean == 1
    with pytest.raises(ConfigError):
        sources.of("m", "b")


@pytest.mark.parametrize(
    ("lengths", "weights"), [((), ()), ((2, 1), (1.0, 1.0)), ((1,), (0.0,)), ((-1,), (1.0,)), ((1,), ())]
)
def test_impossible_counts_are_refused(lengths: tuple[int, ...], weights: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        OutputLengths(lengths, weights)


def test_measured_lengths_come_with_the_project() -> None:
    sources = load_output_lengths()
    assert 100 < sources.of("vicuna-13b-v1.5").mean < 500
    assert sources.of("CodeLlama-34b-Instruct-hf", "older template").mean > 3 * (
        sources.of("CodeLlama-34b-Instruct-hf").mean
    )
