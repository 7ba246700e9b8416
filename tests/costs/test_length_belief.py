"""What is believed about lengths: finished and running answers count, and intervals hold what they say."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from stretto.costs.length_belief import LengthBelief, likely_interval
from stretto.costs.output_lengths import OutputLengths, output_lengths

UNIFORM = output_lengths(dict.fromkeys(range(1, 101), 1.0))


def test_answers_that_ended_outweigh_a_belief_of_little_worth() -> None:
    found = LengthBelief(output_lengths({10: 1.0}), worth=1.0).updated([20] * 99)
    assert found.lengths.lengths == (10, 20)
    assert found.lengths.weights == pytest.approx((0.01, 0.99))
    assert found.worth == 100


def test_the_estimate_is_that_of_kaplan_and_meier_where_nothing_was_believed() -> None:
    """The textbook product: 6 ended at 1, 2, 4 of which 4 was at risk with 2 left; censored at 2 and 3."""
    found = LengthBelief(output_lengths({9: 1.0}), worth=1e-9).updated([1, 2, 4, 9], [3, 4])
    shares = dict(zip(found.lengths.lengths, found.lengths.weights, strict=True))
    assert shares[1] == pytest.approx(1 / 6)
    assert shares[2] == pytest.approx(5 / 6 * 1 / 5)
    assert shares[4] == pytest.approx(5 / 6 * 4 / 5 * 1 / 2)
    assert shares[9] == pytest.approx(5 / 6 * 4 / 5 * 1 / 2)


def test_running_answers_keep_short_ones_from_counting_too_much() -> None:
    """All answers began together, and those of at most 20 tokens have ended."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 101, 4000)
    ended, num_running = lengths[lengths <= 20], int((lengths > 20).sum())
    vague = LengthBelief(UNIFORM, worth=10.0)
    assert vague.updated(ended).lengths.mean < 15
    assert vague.updated(ended, [21] * num_running).lengths.mean == pytest.approx(50.5, rel=0.02)


def test_a_running_answer_longer_than_all_counted_ones_is_not_forgotten() -> None:
    found = LengthBelief(output_lengths({10: 1.0}), worth=1.0).updated([], [500])
    assert found.lengths.lengths == (10, 500)
    assert found.lengths.weights == pytest.approx((0.5, 0.5))


def test_a_certain_distribution_stays() -> None:
    certain = LengthBelief(UNIFORM)
    assert certain.updated([5, 6]) == certain
    assert certain.possible(np.random.default_rng(0)) == UNIFORM
    assert certain.worth == inf


def test_possible_distributions_spread_as_their_worth_says() -> None:
    random = np.random.default_rng(1)
    deviation = float(np.std(range(1, 101)))
    for worth in (10.0, 100.0):
        means = [LengthBelief(UNIFORM, worth).possible(random).mean for _ in range(2000)]
        assert np.mean(means) == pytest.approx(50.5, rel=0.02)
        assert np.std(means) == pytest.approx(deviation / (worth + 1) ** 0.5, rel=0.06)


@pytest.mark.parametrize("num_draws", [2, 5, 20])
def test_the_interval_of_a_few_draws_holds_another_one_as_often_as_it_says(num_draws: int) -> None:
    random = np.random.default_rng(2)
    held = 0
    for _ in range(2000):
        values = np.exp(random.normal(3.0, 0.2, num_draws + 1)).tolist()
        low, high = likely_interval(values[:-1])
        held += low <= values[-1] <= high
    assert 0.88 <= held / 2000 <= 0.92
    assert likely_interval([7.0]) == (7.0, 7.0)


def tokens_left(
    truth: OutputLengths, believed: LengthBelief, num_ended: int, random: np.random.Generator
) -> tuple[float, float, float]:
    """Answer 300 requests in batches of 30; return the tokens left after some ended, and their interval."""

    def drawn(lengths: OutputLengths, num: int) -> np.ndarray:
        return random.choice(lengths.lengths, num, p=np.array(lengths.weights) / sum(lengths.weights))

    lengths = drawn(truth, 300)
    slots = np.zeros(30)
    begun = np.zeros(300)
    for at, length in enumerate(lengths):
        slot = int(slots.argmin())
        begun[at] = slots[slot]
        slots[slot] += length
    now = float(np.sort(begun + lengths)[num_ended - 1])
    has_ended = begun + lengths <= now
    runs = (begun < now) & ~has_ended
    so_far = (now - begun[runs]).astype(int)
    learned = believed.updated(lengths[has_ended], so_far + 1)
    totals = []
    for _ in range(20):
        possible = learned.possible(random)
        points, weights = np.array(possible.lengths), np.array(possible.weights)
        total = int(drawn(possible, int((begun >= now).sum())).sum())
        for tokens in so_far.tolist():
            longer = points > tokens
            total += (
                int(random.choice(points[longer], p=weights[longer] / weights[longer].sum())) - tokens
                if longer.any()
                else 1
            )
        totals.append(float(total))
    return float(lengths[~has_ended].sum() - so_far.sum()), *likely_interval(totals)


@pytest.mark.long
def test_the_interval_of_what_is_left_holds_the_truth_although_another_task_was_counted() -> None:
    """Answers are three times as long as those counted before, which count for few."""
    random = np.random.default_rng(3)
    truth = output_lengths(dict.fromkeys(range(3, 301, 3), 1.0))
    believed = LengthBelief(UNIFORM, worth=5.0)
    found = [tokens_left(truth, believed, 60, random) for _ in range(100)]
    held = sum(low <= left <= high for left, low, high in found) / len(found)
    assert 0.85 <= held <= 0.95
