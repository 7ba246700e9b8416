from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.costs.recorded_order import in_order_of
from stretto.costs.shape import StepShape


def steps_of(groups: list[list[int]]) -> list[StepShape]:
    return [StepShape(len(group), sum(group), max(group)) for group in groups]


def test_steps_of_one_or_two_prompts_tell_the_order() -> None:
    requests = [(50, 1), (10, 2), (30, 3), (20, 4), (40, 5), (60, 6)]
    steps = steps_of([[60], [20, 50], [10, 30, 40]])
    found = in_order_of(steps, requests, seed=0)
    assert found[0] == (60, 6)
    assert set(found[1:3]) == {(20, 4), (50, 1)}
    assert set(found[3:]) == {(10, 2), (30, 3), (40, 5)}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), min_size=1, max_size=12), st.integers(0, 9)
)
def test_every_request_is_placed_once_and_most_steps_are_made(groups: list[list[int]], seed: int) -> None:
    requests = [(prompt, output) for output, group in enumerate(groups) for prompt in group]
    shuffled = random.Random(seed).sample(requests, len(requests))
    found = in_order_of(steps_of(groups), shuffled, seed)
    assert sorted(found) == sorted(requests)
    assert found == in_order_of(steps_of(groups), shuffled, seed)
    done = 0
    for group in groups:
        prompts = [prompt for prompt, _ in found[done : done + len(group)]]
        done += len(group)
        if len(group) == 1:
            assert prompts == group


def test_what_no_step_is_made_of_is_placed_all_the_same() -> None:
    found = in_order_of(steps_of([[7], [9, 9]]), [(7, 1), (8, 2), (8, 3), (5, 4)], seed=0)
    assert found[0] == (7, 1)
    assert sorted(found[1:]) == [(5, 4), (8, 2), (8, 3)]
