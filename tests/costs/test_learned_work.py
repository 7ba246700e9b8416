"""What is learned of the work that programs ask for later."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from stretto.costs.learned_work import LearnedWork, Source
from stretto.model.errors import ConfigError

AGENT, CHAT = ("agent", "turn"), ("chat", "answer")


def index_s(learned: LearnedWork, source: Source, done_s: float, waiting_s: float) -> float | None:
    """Return the index of a program of this source with so much work so far and waiting."""
    left = learned.find(source, done_s)
    return None if left is None else left.index_s(waiting_s)


def test_nothing_is_known_at_first_nor_after_a_few_programs() -> None:
    learned = LearnedWork()
    for _ in range(3):
        learned.observe(CHAT, 1.0, 0.0)
    assert index_s(learned, CHAT, 1.0, 0.5) is None
    learned.observe(CHAT, 1.0, 0.0)
    assert index_s(learned, CHAT, 1.0, 0.5) == 0.5
    assert index_s(learned, AGENT, 1.0, 0.5) is None


def test_an_unknown_step_of_a_known_kind_is_like_other_steps() -> None:
    learned = LearnedWork()
    for _ in range(8):
        learned.observe(CHAT, 1.0, 0.0)
    assert index_s(learned, ("chat", "another"), 1.0, 0.5) == 0.5


def test_where_all_need_the_same_the_index_is_that() -> None:
    learned = LearnedWork()
    for _ in range(20):
        learned.observe(AGENT, 1.0, 3.0)
    assert index_s(learned, AGENT, 1.0, 0.5) == pytest.approx(3.5)


def test_many_short_ones_count_more_than_a_few_long_ones() -> None:
    """The mean is 10 s. But after 0.5 s, nine of ten have ended, so that an end costs 0.56 s."""
    learned = LearnedWork()
    for number in range(40):
        learned.observe(AGENT, 1.0, 100.0 if number % 10 == 0 else 0.0)
    assert index_s(learned, AGENT, 1.0, 0.5) == pytest.approx(0.5 / 0.9)


def test_a_program_that_has_lasted_long_is_compared_with_those_that_did_too() -> None:
    learned = LearnedWork()
    for _ in range(9):
        learned.observe(AGENT, 1.0, 0.1)
        learned.observe(AGENT, 50.0, 20.0)
    assert index_s(learned, AGENT, 1.2, 0.5) == pytest.approx(0.6)
    assert index_s(learned, AGENT, 60.0, 0.5) == pytest.approx(20.5)
    assert index_s(learned, AGENT, 7000.0, 0.5) == pytest.approx(20.5), "the nearest that is known"


def test_it_follows_a_load_that_changes() -> None:
    learned = LearnedWork()
    for _ in range(2000):
        learned.observe(AGENT, 1.0, 0.0)
    for _ in range(1000):
        learned.observe(AGENT, 1.0, 8.0)
    now_s = index_s(learned, AGENT, 1.0, 0.5)
    assert now_s is not None
    assert now_s > 7.0


def test_memory_is_bounded() -> None:
    learned, draw = LearnedWork(), random.Random(0)
    for number in range(5000):
        source = (f"kind {number % 1500}", "step")
        learned.observe(source, draw.lognormvariate(0, 4), draw.lognormvariate(0, 4), draw.random())
        learned.observe_fresh(source, 100, draw.randint(0, 100))
    learned.check_invariants()
    assert len(learned.state()) <= 1024


def test_it_can_be_saved_and_loaded() -> None:
    learned, draw = LearnedWork(), random.Random(1)
    for _ in range(500):
        left_s = draw.choice((0.0, draw.lognormvariate(0, 1)))
        learned.observe(AGENT, draw.lognormvariate(0, 1), left_s, 2.0)
        learned.observe_fresh(AGENT, 100, 25)
    loaded = LearnedWork.of_state(json.loads(json.dumps(learned.state())))
    assert list(loaded.rows()) == list(learned.rows())
    assert index_s(loaded, AGENT, 1.0, 0.5) == index_s(learned, AGENT, 1.0, 0.5)
    assert loaded.fresh(AGENT, 200) == learned.fresh(AGENT, 200)
    assert loaded.way_s(AGENT) == 2.0


def wrong_states() -> Iterator[object]:
    """States that are damaged in one place each."""
    learned = LearnedWork()
    learned.observe(AGENT, 1.0, 3.0, asked_s=1.0)
    for changes in (
        {"source": None},
        {"fresh": [1]},
        {"fresh": [0, 1, 0, math.nan, 3]},
        {"way": [-1.0, 2]},
        {"way": [0.0, math.inf]},
        {"cells": [[99, [0, []]]]},
        {"cells": [[3, [0, []]]]},
        {"cells": [[3, [0, [[5, -1, 2]]]]]},
        {"cells": [[3, [0, [[5, 1000, 2]]]]]},
        {"cells": [[3, [0, [[5.5, 1, 2]]]]]},
        {"queries": [[99, 1, 1, 1, 1]]},
        {"queries": [[1, 1, 1, math.nan, 1]]},
        {"queries": [[1, 1000, 1, 1, 1]]},
        {"queries": [[1, 1]]},
    ):
        yield [{**learned.state()[0], **changes}]
    yield from ([{}], [3], 3, None, learned.state() * 600)


@pytest.mark.parametrize("wrong", list(wrong_states()))
def test_a_damaged_state_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="learned work is not of the form"):
        LearnedWork.of_state(wrong)


def test_people_see_kinds_by_work_and_by_queries_so_far() -> None:
    learned = LearnedWork()
    for number in range(20):
        learned.observe(CHAT, 1.0, 10.0 if number < 18 else 100.0, asked_s=0.5)
        learned.observe(CHAT, 40.0, 0.0, asked_s=0.5)
    queries = learned.queries_of("chat")
    for _ in range(20):
        queries.note_query(1, 0.5)
        queries.note_query(2, 0.3)
        queries.note_going_on(1)
        queries.note_end(2)
    young, old, first, second = learned.rows()
    assert [row.num for row in (young, old, first, second)] == [20, 20, 20, 20]
    assert [young.median_s, young.p95_s] == pytest.approx([10.0, 100.0])
    assert old.median_s == 0.0
    assert 0.5 < young.done_s <= 1.0
    assert first.num_queries == 1
    assert first.median_s == pytest.approx(0.3)
    assert (second.num_queries, second.p95_s) == (2, 0.0)
    assert 0.8 < first.index_s < 0.9, "the second query is part of the price of an end"


def test_work_that_was_learned_over_all_queries_of_a_program_is_left_aside() -> None:
    """Files of earlier versions counted the turns of agents as one program's work."""
    learned = LearnedWork()
    for _ in range(8):
        learned.observe(AGENT, 1.0, 3.0)
    learned.observe_fresh(AGENT, 100, 25)
    old = [{**one, "is_open_ended": True} for one in learned.state()]
    for one in old:
        del one["queries"]
    loaded = LearnedWork.of_state(old)
    assert not list(loaded.rows())
    assert loaded.fresh(AGENT, 100) == 25


def test_new_ends_of_histories_are_numbers_and_new_documents_are_shares() -> None:
    learned, draw = LearnedWork(), random.Random(2)
    assert learned.fresh(CHAT, 500) == 500
    for _ in range(50):
        length = draw.randint(100, 4000)
        learned.observe_fresh(CHAT, length, 90)
        learned.observe_fresh(AGENT, length, 0.8 * length)
    assert learned.fresh(CHAT, 3000) == pytest.approx(90)
    assert learned.fresh(AGENT, 3000) == pytest.approx(2400)
