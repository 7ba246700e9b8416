"""The searches of sizing: capacities by bisection, and the cheapest fleet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from random import Random

from stretto.sizing.capacity import Capacity, Levels, capacity_level, crossing
from stretto.sizing.fleets import Counts, place_by_price, search_fleets


def test_the_highest_level_that_meets_is_found_wherever_the_search_begins() -> None:
    for seed in range(300):
        check_level(Random(seed))


def check_level(draw: Random) -> None:
    highest = draw.randrange(60)
    last = draw.randrange(-1, highest + 1)
    tried = []

    def times_limit(level: int) -> float:
        assert 0 <= level <= highest
        tried.append(level)
        return 0.9 if level <= last else draw.choice([1.1, 5.0, math.inf])

    found = searched(times_limit, draw.randrange(-5, 70), highest)
    assert found == (None if last < 0 else last)
    assert len(tried) == len(set(tried))


def searched(times_limit: Callable[[int], float], guess: int, highest: int) -> int | None:
    search = capacity_level(guess, 0, highest)
    try:
        level = next(search)
        while True:
            level = search.send(times_limit(level))
    except StopIteration as end:
        found: int | None = end.value
        return found


def test_a_good_guess_needs_a_run_for_each_level_near_the_capacity() -> None:
    tried: list[int] = []

    def times_limit(level: int) -> float:
        tried.append(level)
        return 2 ** ((level - 20.5) / 4)

    assert searched(times_limit, 20, 99) == 20
    assert sorted(tried) == [19, 20, 21, 22]


def test_one_load_that_misses_or_is_met_by_chance_does_not_end_the_search() -> None:
    smooth = {level: 2 ** ((level - 30.5) / 4) for level in range(60)}
    for guess in (20, 29, 31, 40):
        assert searched((smooth | {28: 1.05}).__getitem__, guess, 59) == 30
        assert searched((smooth | {33: 0.99}).__getitem__, guess, 59) == 30


def test_the_crossing_is_that_of_the_nearest_curve_that_never_falls() -> None:
    for seed in range(100):
        draw = Random(seed)
        tried = {level: math.exp(draw.uniform(-1, 1) + 0.1 * (level - 6)) for level in range(12)}
        assert crossing(tried) == max(
            (level for level, fit in nearest_curve(tried) if fit <= 0), default=None
        )
    assert crossing({3: 0.5, 4: math.inf}) == 3
    assert crossing({3: math.inf}) is None


def nearest_curve(tried: dict[int, float]) -> list[tuple[int, float]]:
    """Isotonic regression by its min-max formula."""
    logs = [math.log(tried[level]) for level in sorted(tried)]
    number = len(logs)

    def mean(first: int, last: int) -> float:
        return sum(logs[first : last + 1]) / (last + 1 - first)

    fits = [
        max(min(mean(first, last) for last in range(place, number)) for first in range(place + 1))
        for place in range(number)
    ]
    return list(zip(sorted(tried), fits, strict=True))


def test_the_cheapest_fleet_is_that_of_a_scan_of_all_fleets() -> None:
    """Fleets serve a little more or less than the sum of their servers, as those that are simulated."""
    for seed in range(300):
        check_fleet(Random(seed))


def check_fleet(draw: Random) -> None:
    kinds, most = draw.choice([1, 2, 3]), draw.choice([4, 6, 9])
    prices = [round(draw.uniform(1, 5), draw.choice([0, 2])) for _ in range(kinds)]
    each = [draw.choice([0, 1, 2, 3, 5, 8]) * draw.uniform(0.8, 1.2) for _ in range(kinds)]
    load, power = draw.uniform(0.5, 25), draw.uniform(0.9, 1.1)
    asked: list[Counts] = []

    def serves(counts: Counts) -> bool:
        asked.append(counts)
        served = sum(number * one for number, one in zip(counts, each, strict=True))
        return math.pow(served, power) >= load

    guesses = [load / one * draw.uniform(0.8, 1.25) if one else None for one in each]
    *_, found = search_fleets(prices, serves, guesses, most)
    assert not found.left
    assert len(asked) == len(set(asked))
    fleets = [one for one in itertools.product(range(most + 1), repeat=kinds) if 1 <= sum(one) <= most]
    fleets.sort(key=lambda one: place_by_price(one, prices))
    assert found.best == next((one for one in fleets if serves(one)), None)


def test_levels_lie_a_twentieth_apart() -> None:
    for grid in (Levels("sessions"), Levels("per_s")):
        amounts = [grid.load(level).amount for level in range(180)]
        assert amounts == sorted(set(amounts))
        assert all(after <= max(before + 1, 1.07 * before) for before, after in itertools.pairwise(amounts))
        assert [grid.at_most(grid.load(level).amount) for level in (0, 1, 50, 179)] == [0, 1, 50, 179]


def test_a_capacity_is_the_median_of_its_draws() -> None:
    capacity = Capacity(Levels("sessions"), (4, None, 9))
    assert (capacity.low, capacity.middle, capacity.high) == (0, 5, 10)
    assert capacity.middle_draw == 0
