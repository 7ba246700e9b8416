"""Prices of many steps at once equal those of each step by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stretto.costs.presets import load_preset
from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost
from stretto.costs.step_arrays import ShapeArrays, steps_s
from stretto.model.profile import Profile
from stretto.sim.step_times import ProfileCost


def random_rows(seed: int, num: int = 60) -> list[tuple[StepShape, int]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(num):
        decodes = draw.choice([0, 1, 7, 200])
        longest = draw.randint(2, 4000)
        context = decodes * draw.randint(1, longest)
        prefills = draw.choice([0, 0, 3]) if decodes else 2
        length = draw.randint(1, 900)
        shape = StepShape(
            prefills,
            prefills * length,
            length if prefills else 0,
            prefills * length * (length + 1) // 2,
            decodes,
            context,
            longest if decodes else 0,
        )
        rows.append((shape, 1 if prefills else draw.choice([1, 2, 3, 50, 900])))
    return rows


def priced(cost: StepCost, rows: list[tuple[StepShape, int]]) -> list[float]:
    return [cost.step_s(shape) if repeats == 1 else cost.steps_s(shape, repeats) for shape, repeats in rows]


def arrays(rows: list[tuple[StepShape, int]]) -> ShapeArrays:
    columns = zip(*((*shape, repeats) for shape, repeats in rows), strict=True)
    return ShapeArrays(*(np.array(column, np.int64) for column in columns))


@pytest.mark.parametrize(
    ("preset", "model", "tp"),
    [
        ("A100-80G", "vicuna-13b-v1.5", 1),
        ("A100-80G", "vicuna-13b-v1.5", 4),
        ("A100-80G", "Mixtral-8x7B-v0.1", 2),
        ("A100-80G", "Mixtral-8x7B-v0.1", 4),
        ("A100-80G", "mpt-7b-chat", 2),
        ("A6000", "Mistral-7B", 1),
    ],
)
def test_prices_of_intervals_equal_the_prices_of_their_steps(preset: str, model: str, tp: int) -> None:
    known = load_preset(preset)
    cost = known.step_cost(known.model(model), tp)
    for seed in range(4):
        rows = random_rows(seed)
        expected = priced(cost, rows)
        assert steps_s(cost, arrays(rows)) == pytest.approx(expected, rel=1e-9)


def test_any_other_cost_is_asked_for_each_interval() -> None:
    cost: StepCost = ProfileCost(Profile())
    rows = random_rows(1, 5)
    expected = priced(cost, rows)
    assert steps_s(cost, arrays(rows)).tolist() == expected
