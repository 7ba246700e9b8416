"""How programs of several queries go on."""

from __future__ import annotations

import json
import random

import pytest

from stretto.costs.learned_queries import LearnedQueries
from stretto.costs.work_left import least_per_end


def test_at_first_the_index_is_the_work_so_far_and_what_waits() -> None:
    learned = LearnedQueries()
    assert least_per_end(0.5, learned.stops(1)) == pytest.approx(1.0)
    assert least_per_end(0.5, learned.stops(2)) == pytest.approx(1.5)


def test_programs_of_a_fixed_length_have_all_that_is_left_as_their_index() -> None:
    learned = LearnedQueries()
    for _ in range(200):
        for number in (1, 2, 3):
            learned.note_query(number, 1.0)
        learned.note_going_on(1)
        learned.note_going_on(2)
        learned.note_end(3)
    assert least_per_end(1.0, learned.stops(1)) == pytest.approx(3.0, rel=0.03)
    assert least_per_end(1.0, learned.stops(2)) == pytest.approx(2.0, rel=0.03)
    assert least_per_end(1.0, learned.stops(3)) == pytest.approx(1.0, rel=0.05)


def test_the_stops_are_those_of_many_drawn_programs() -> None:
    """Whatever chances there are, a stop's work and share of ends are the means of drawn programs."""
    draw = random.Random(3)
    learned = LearnedQueries()
    chances = [draw.uniform(0.1, 0.6) for _ in range(3)] + [0.3]
    lengths = []
    for _ in range(20_000):
        number = 1
        while draw.random() > chances[min(number, 4) - 1]:
            learned.note_query(number, 2.0)
            learned.note_going_on(number)
            number += 1
        learned.note_query(number, 2.0)
        learned.note_end(number)
        lengths.append(number)
    stops = learned.stops(1)
    for spent_s, ended in stops[1:3]:
        most = next(
            n for n in range(2, 9) if abs(sum(one <= n for one in lengths) / len(lengths) - ended) < 0.08
        )
        later = sum(2.0 * (min(one, most) - 1) for one in lengths) / len(lengths)
        assert spent_s == pytest.approx(later, rel=0.2)
    spent_s, ended = stops[-1]
    assert ended > 0.98
    assert spent_s == pytest.approx(2.0 * (sum(lengths) / len(lengths) - 1), rel=0.2)


def test_counts_are_bounded_and_can_be_saved() -> None:
    learned, draw = LearnedQueries(), random.Random(0)
    for _ in range(3000):
        number = 1 + int(draw.paretovariate(1.0))
        learned.note_query(number, draw.random())
        draw.choice((learned.note_going_on, learned.note_end, learned.note_return))(number)
        learned.check_invariants()
    loaded = LearnedQueries.of_state(json.loads(json.dumps(learned.state())))
    loaded.check_invariants()
    assert list(loaded.rows()) == list(learned.rows())


def test_a_kind_is_known_for_single_queries_once_enough_programs_have_ended() -> None:
    queries = LearnedQueries()
    for _ in range(63):
        queries.note_end(1)
    assert not queries.are_single
    queries.note_end(1)
    assert queries.are_single
    queries.note_going_on(1)
    queries.note_going_on(1)
    assert not queries.are_single
