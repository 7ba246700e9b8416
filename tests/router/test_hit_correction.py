"""The correction of predicted hits."""

from __future__ import annotations

from random import Random

from stretto.router.hit_correction import HitCorrection


def test_hits_are_predicted_without_bias_where_shared_prefixes_end_within_blocks() -> None:
    draw, correction = Random(5), HitCorrection(64)
    predicted = reported = 0
    for number in range(2000):
        shared = draw.randrange(64, 2000)
        found = correction.of(shared // 64 * 64, 4000)
        if number >= 500:
            predicted += found
            reported += shared // 16 * 16
        correction.learn(found, shared // 16 * 16)
    assert abs(predicted / reported - 1) < 0.005


def test_an_evicted_prefix_and_a_missing_prediction_teach_nothing() -> None:
    correction = HitCorrection(64)
    correction.learn(1024, 0)
    correction.learn(0, 32)
    assert correction.of(1024, 4000) == 1024


def test_a_correction_stays_within_a_block_and_below_the_prompt() -> None:
    correction = HitCorrection(64)
    for _ in range(5000):
        correction.learn(640, 640 + 64)
    assert correction.of(640, 4000) == 640 + 64
    assert correction.of(640, 650) == 649
    for _ in range(5000):
        correction.learn(640, 640 - 64)
    assert correction.of(640, 4000) == 640
