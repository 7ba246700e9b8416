"""The benchmark of eviction: its optimum against a search, and its table at toy size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
from support.machines import llm_request

from benchmarks.registry import BenchmarkOptions
from benchmarks.retain.benchmark import RetainSize, measure
from benchmarks.retain.calls import Call, agent_calls, coding_calls
from benchmarks.retain.replay import BLOCK_TOKENS, cached, optimal
from stretto.model.values import Segment
from stretto.sched.queries.request import StepRequest

_REQUEST: StepRequest = llm_request("q", "s", 10)


def call(number: int, text: str) -> Call:
    """A call whose prompt has a block for each letter; its empty answer takes one block more."""
    prompt = tuple(Segment(letter * (4 * BLOCK_TOKENS - 1), "x") for letter in text)
    return Call(float(number), number + 0.5, _REQUEST, prompt, "")


def fewest_misses(texts: Sequence[str], num_blocks: int) -> int:
    """Return the least misses by a search over everything that can be kept after each call."""

    @cache
    def best(number: int, held: frozenset[str]) -> int:
        if number == len(texts):
            return 0
        path = [texts[number][: i + 1] for i in range(len(texts[number]))]
        num_missed = len(path) - next((i for i, block in enumerate(path) if block not in held), len(path))
        room = num_blocks - len(path)
        others = [block for block in sorted(held) if block not in path]
        choices: list[frozenset[str]] = [frozenset()] if room == 0 else []
        for mask in range(1 << len(others)):
            kept = frozenset(block for i, block in enumerate(others) if mask >> i & 1)
            if len(kept) == min(room, len(others)):
                choices.append(kept)
        return num_missed + min(best(number + 1, kept | frozenset(path)) for kept in choices)

    return best(0, frozenset())


@pytest.mark.parametrize("num_blocks", [2, 3, 4])
@pytest.mark.parametrize(
    "texts", [("ab", "cd", "ab", "ce", "cd", "ab"), ("ab", "c", "d", "ac", "ab", "c", "d"), ("a", "b", "a")]
)
def test_no_search_finds_fewer_misses_than_the_optimum(texts: tuple[str, ...], num_blocks: int) -> None:
    calls = [call(number, text) for number, text in enumerate(texts)]
    best = optimal(calls, num_blocks + 1)
    assert best == fewest_misses(texts, num_blocks)
    assert cached(calls, num_blocks + 1, forecasts=False) >= best


def test_there_are_57_calls_and_sessions_grow() -> None:
    assert len(coding_calls(1, 0, None)) == 57
    calls = agent_calls(3, 1.0, 0, None)

    def texts(seed: int) -> list[object]:
        return [(call.start_s, call.prompt, call.answer) for call in agent_calls(3, 1.0, seed, None)]

    assert texts(0) == texts(0) != texts(1)
    of_one = [call for call in calls if call.request.query == "s0"]
    for before, after in pairwise(of_one):
        assert after.prompt[: len(before.prompt)] == before.prompt
        assert after.start_s > before.end_s


def test_the_table_at_toy_size() -> None:
    size = RetainSize(rooms=(2.0,), num_queries=(1,), num_sessions=6, rates_per_s=(0.5,), seeds=1)
    report = measure(size, BenchmarkOptions())
    assert {row.name.split(",")[0] for row in report.rows} == {"coding", "6 agents"}
    for row in report.rows:
        values = row.values
        assert values["first"] <= values["optimum"] <= min(values["ours"], values["lru"])  # type: ignore[operator, type-var]
    assert all(goal.met for goal in report.goals)
